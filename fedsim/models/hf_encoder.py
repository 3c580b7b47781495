"""A text encoder of a local Hugging Face folder as a client's extractor: `model.group = hf:./folder`.

Its features are what it makes of the first token. Weights are those of the folder, or fresh ones where it holds a
config.json alone. Nothing is downloaded. `data.tokenizer = ./folder` makes tokens as this encoder knows them.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.compat import import_torchvision
from fedsim.data.inputs import PADDING, InputShape, mask_of, trimmed
from fedsim.errors import UserError
from fedsim.models.base import Backbone, require_kind

WEIGHTS = ("*.safetensors", "*.bin")


class Encoder(nn.Module):
    """(B, L) → (B, d)"""

    def __init__(self, network: nn.Module, padding: int):
        super().__init__()
        self.network = network
        self.padding = padding

    def forward(self, tokens_BL: Tensor) -> Tensor:
        tokens_BL = trimmed(tokens_BL)
        mask_BL = mask_of(tokens_BL)
        numbers_BL = tokens_BL
        if self.padding != PADDING:  # back from how all texts are stored, see `swap_padding`
            numbers_BL = torch.where(tokens_BL == self.padding, PADDING, tokens_BL)
            numbers_BL = torch.where(tokens_BL == PADDING, self.padding, numbers_BL)
        made = self.network(input_ids=numbers_BL, attention_mask=mask_BL.long())
        states_BLd: Tensor = made.last_hidden_state
        return states_BLd[:, 0]


def build(text: str, input_shape: InputShape) -> Backbone:
    sample = require_kind(text, input_shape, "tokens")
    folder = Path(text.partition(":")[2]).expanduser()
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{text} names no Hugging Face folder: {folder.absolute() / 'config.json'} is missing; save a model "
            "there with save_pretrained."
        )
    try:
        import_torchvision()  # which transformers imports, and which may need our help
        import transformers
    except ImportError as error:
        raise UserError(f"{text} needs transformers ({error}); run: pip install 'fedsim-htfl[text]'.") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
        _check_fit(text, config, sample)
        if any(next(folder.glob(pattern), None) for pattern in WEIGHTS):
            network = transformers.AutoModel.from_pretrained(
                str(folder), local_files_only=True, torch_dtype=torch.float32
            )
        else:
            network = transformers.AutoModel.from_config(config)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(
            f"{text} cannot be loaded ({reason[:300]}); save the model anew with save_pretrained."
        ) from None
    for name in ("pooler",):  # its output is not used, so it would never learn, yet its weights would be averaged
        if isinstance(getattr(network, name, None), nn.Module):
            setattr(network, name, None)
    return Backbone(Encoder(network, config.pad_token_id or 0), int(config.hidden_size))


def _check_fit(text: str, config: Any, sample: InputShape) -> None:
    if not hasattr(config, "hidden_size") or not hasattr(config, "vocab_size"):
        raise UserError(f"{text} is no encoder of texts: its config.json has no hidden_size or no vocab_size.")
    if config.vocab_size < sample.vocabulary:
        raise UserError(
            f"{text} knows {config.vocab_size} tokens, but the vocabulary of these texts has {sample.vocabulary}; "
            f"set data.tokenizer to its folder, or data.vocabulary={config.vocab_size}."
        )
    longest = getattr(config, "max_position_embeddings", None)
    if longest and longest < sample[0]:
        raise UserError(
            f"{text} takes texts of up to {longest} tokens, not {sample[0]}; set data.sequence_length={longest}."
        )
