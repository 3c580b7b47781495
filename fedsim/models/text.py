"""Models of texts: a batch is (B, L) token numbers, which say themselves where a text ends (`data/inputs.py`).

K, the size of embeddings, hidden states and features, is `model.feature_dim`, so that no mapping is needed.
Padding is never looked at: means are over true tokens, the last hidden state is that of the last token, attention
is masked. The published code passes the features of four of them through a log-softmax, because the
whole network ends in one and only its last layer was exchanged: `model.feature_cut = published`.

Dimensions: B batch, L tokens, K features, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn

from fedsim.config import Model
from fedsim.data.inputs import PADDING, lengths_of, mask_of, trimmed
from fedsim.errors import UserError
from fedsim.models.base import Architecture, Backbone, require_kind

NUM_LAYERS, DROPOUT = 2, 0.2
"""Of LSTM and GRU."""
FEED_FORWARD, ATTENTION_DROPOUT = 2048, 0.1
"""Of the transformers."""
SIZES = (1, 2, 4, 8, 16)
"""Numbers of heads and layers in the groups of transformers."""


class MeanEmbedding(nn.Module):
    """(B, L) → (B, K): the mean embedding of a text's tokens."""

    def __init__(self, vocabulary: int, dim: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=PADDING)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        tokens_BL = trimmed(tokens_BL)
        mask_BL1 = mask_of(tokens_BL)[:, :, None]
        return (self.embedding(tokens_BL) * mask_BL1).sum(dim=1) / mask_BL1.sum(dim=1)


class LastState(nn.Module):
    """(B, L) → (B, K): the hidden state behind the last token, of recurrent layers of any kind.

    Layers run over padding too, but what comes after the last token cannot change what came before it.
    """

    def __init__(self, vocabulary: int, dim: int, layers: type[nn.LSTM] | type[nn.GRU], activation: nn.Module):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=PADDING)
        self.layers = layers(dim, dim, num_layers=NUM_LAYERS, dropout=DROPOUT, batch_first=True)
        self.end = nn.Sequential(activation, nn.Dropout(DROPOUT))

    def forward(self, tokens_BL: Tensor) -> Tensor:
        tokens_BL = trimmed(tokens_BL)
        states_BLK, _ = self.layers(self.embedding(tokens_BL))
        return self.end(_last(states_BLK, lengths_of(tokens_BL)))


class BothWays(nn.Module):
    """(B, L) → (B, K): one LSTM reads the text, another one its tokens from the last to the first; 2K become K."""

    def __init__(self, vocabulary: int, dim: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=PADDING)
        self.forwards = nn.LSTM(dim, dim, batch_first=True)
        self.backwards = nn.LSTM(dim, dim, batch_first=True)
        self.join = nn.Linear(2 * dim, dim)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        tokens_BL = trimmed(tokens_BL)
        lengths_B = lengths_of(tokens_BL)
        there, _ = self.forwards(self.embedding(tokens_BL))
        back, _ = self.backwards(self.embedding(reversed_texts(tokens_BL)))
        return self.join(torch.cat([_last(there, lengths_B), _last(back, lengths_B)], dim=1))


class Transformer(nn.Module):
    """(B, L) → (B, K): what an encoder makes of the first token, the class token."""

    def __init__(self, vocabulary: int, dim: int, length: int, num_heads: int, num_layers: int):
        super().__init__()
        self.scale = math.sqrt(dim)
        self.embedding = nn.Embedding(vocabulary, dim)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)  # so that scaled ones are as large as positions
        self.register_buffer("positions_LK", sinusoids(length, dim), persistent=False)
        self.dropout = nn.Dropout(ATTENTION_DROPOUT)
        layer = nn.TransformerEncoderLayer(dim, num_heads, FEED_FORWARD, ATTENTION_DROPOUT, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        tokens_BL = trimmed(tokens_BL)
        assert isinstance(self.positions_LK, Tensor)
        positions_LK = self.positions_LK[: tokens_BL.shape[1]]
        embedded_BLK = self.dropout(self.embedding(tokens_BL) * self.scale + positions_LK)
        encoded_BLK: Tensor = self.encoder(embedded_BLK, src_key_padding_mask=~mask_of(tokens_BL))
        return encoded_BLK[:, 0]


def sinusoids(length: int, dim: int) -> Tensor:
    """(L, K): sine in even columns, cosine in odd ones, with periods from 2π to nearly 20,000π positions."""
    positions_L1 = torch.arange(length, dtype=torch.float32)[:, None]
    angles = positions_L1 * torch.exp(torch.arange(0, dim, 2) * (-math.log(10_000) / dim))
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :dim]


def reversed_texts(tokens_BL: Tensor) -> Tensor:
    """Each text from its last token to its first; padding stays behind its end."""
    steps_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
    from_end_BL = lengths_of(tokens_BL)[:, None] - 1 - steps_L
    return tokens_BL.gather(1, torch.where(from_end_BL < 0, steps_L, from_end_BL))


def _last(states_BLK: Tensor, lengths_B: Tensor) -> Tensor:
    index_B1K = (lengths_B - 1)[:, None, None].expand(-1, 1, states_BLK.shape[2])
    return states_BLK.gather(1, index_B1K).squeeze(1)


def text_model(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    sample, dim = require_kind(name, input_shape, "tokens"), config.feature_dim
    vocabulary, is_published = sample.vocabulary, config.feature_cut == "published"
    ends_in_softmax = True
    module: nn.Module
    match name:
        case "fastText":
            module = nn.Sequential(MeanEmbedding(vocabulary, dim), nn.Linear(dim, dim))
        case "LogisticRegression":
            module = MeanEmbedding(vocabulary, dim)
        case "LSTM":
            module = LastState(vocabulary, dim, nn.LSTM, nn.ReLU())
        case "GRU":
            module = LastState(vocabulary, dim, nn.GRU, nn.Identity())
        case "BiLSTM":
            module, ends_in_softmax = BothWays(vocabulary, dim), False
        case _:
            num_heads, num_layers = map(int, name.removeprefix("Transformer-").split("x"))
            if dim % num_heads:
                raise UserError(
                    f"model {name} has {num_heads} heads, which must divide its {dim} features; set "
                    f"model.feature_dim to a multiple of {num_heads}."
                )
            module, ends_in_softmax = Transformer(vocabulary, dim, sample[0], num_heads, num_layers), False
    if is_published and ends_in_softmax:
        module = nn.Sequential(module, nn.LogSoftmax(dim=1))
    return Backbone(module, dim)


_HEADS_AND_LAYERS = sorted({(8, 2), *((8, n) for n in SIZES), *((n, 4) for n in SIZES), *((n, n) for n in SIZES)})
MODELS = {
    name: Architecture(text_model)
    for name in (
        *("fastText", "LogisticRegression", "LSTM", "BiLSTM", "GRU"),
        *(f"Transformer-{heads}x{layers}" for heads, layers in _HEADS_AND_LAYERS),
    )
}
"""Transformer-8x2 has 8 heads and 2 layers."""
