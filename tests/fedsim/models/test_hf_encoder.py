"""A local Hugging Face folder as a text client's encoder, with one so small that the test makes it."""

import json

import pytest
import torch

from fedsim import models
from fedsim.compat import import_torchvision
from fedsim.config import Data, Experiment, Model, Run
from fedsim.data import Federation
from fedsim.data.inputs import InputShape, lengths_of
from fedsim.errors import UserError

import_torchvision()  # which transformers imports
transformers = pytest.importorskip("transformers", reason="it is in the extra `text`")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "peace", "football", "stocks", "software", "the", "[MASK]"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "tiny"
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=12, **sizes)
    transformers.BertModel(config).save_pretrained(made)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(made)
    return made


def build(shape, group="hf:./tiny", **options):
    return models.build(Model(group=group, feature_dim=8, **options), 0, shape, 3)


def test_its_features_are_those_of_the_first_token_and_padding_is_masked(folder):
    model = build(InputShape((6,), "tokens", 10)).eval()
    tokens = torch.tensor([[2, 4, 8, 5, 3, 0], [2, 6, 3, 0, 0, 0]])
    network = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    with torch.no_grad():
        for row, text in enumerate(tokens):
            alone = network(input_ids=text[text != 0][None]).last_hidden_state[0, 0]
            torch.testing.assert_close(model.features(tokens)[row], alone, rtol=1e-4, atol=1e-5)
    assert model(tokens).shape == (2, 3)


def test_every_weight_learns(folder):
    model = build(InputShape((6,), "tokens", 10)).train()
    model(torch.tensor([[2, 4, 5, 6, 7, 8], [2, 4, 0, 0, 0, 0]])).square().sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_its_tokenizer_makes_the_tokens(folder, tmp_path):
    (tmp_path / "texts.csv").write_text("text,label\nThe peace,a\nFootball software,b\nstocks,a\npeace the,b\n")
    data = Data(dataset="./texts.csv", text="text", tokenizer="./tiny", sequence_length=6, partition="iid")
    federation = Federation(Experiment(run=Run(clients=1), data=data))
    assert federation.dataset.inputs[0].tolist() == [2, 8, 4, 3, 0, 0]
    assert lengths_of(torch.from_numpy(federation.dataset.inputs[:])).tolist() == [4, 4, 3, 4]
    assert build(federation.input_shape)(torch.from_numpy(federation.dataset.inputs[:]).long()).shape == (4, 3)


def test_without_weights_they_are_drawn(folder):
    for file in folder.glob("*.safetensors"):
        file.unlink()
    shape = InputShape((6,), "tokens", 10)
    torch.manual_seed(1)
    first = build(shape)
    torch.manual_seed(1)
    second = build(shape)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_what_does_not_fit_is_refused(folder):
    with pytest.raises(UserError, match=r"knows 10 tokens, but the vocabulary of these texts has 50; set"):
        build(InputShape((6,), "tokens", 50))
    with pytest.raises(UserError, match=r"takes texts of up to 12 tokens, not 40; set data.sequence_length=12"):
        build(InputShape((40,), "tokens", 10))
    with pytest.raises(UserError, match=r"hf:./tiny takes texts, but a sample of this dataset is 2 numbers"):
        build((2,))
    (folder / "config.json").write_text(json.dumps({"model_type": "nonsense"}))
    with pytest.raises(UserError, match=r"hf:./tiny cannot be loaded \("):
        build(InputShape((6,), "tokens", 10))


def test_shapes_alone_need_no_memory(folder):
    with torch.device("meta"):
        model = build(InputShape((6,), "tokens", 10))
    assert next(model.parameters()).device.type == "meta"
