"""What `load` makes of a name or a path, what the embedded generator gives, and who may import all this."""

import ast
import json
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import fedsim
from fedsim.errors import UserError
from fedsim.generators import choose_labels, labelled_pairs, load
from fedsim.generators.tiny import TinyNetwork


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def index(folder: Path, **changes) -> Path:
    """A folder with the index of a pipeline and its parts, all empty."""
    parts = {name: ["diffusers", "Part"] for name in ("unet", "vae", "scheduler")}
    parts |= {name: ["transformers", "Part"] for name in ("text_encoder", "tokenizer")}
    for name in parts:
        (folder / name).mkdir()
    content = {"_class_name": "StableDiffusionPipeline", **parts, "safety_checker": [None, None], **changes}
    (folder / "model_index.json").write_text(json.dumps(content))
    return folder


def test_the_empty_name_is_the_embedded_generator():
    assert load().name == load("tiny").name == "tiny"


@pytest.mark.parametrize("name", ["nothing.pkl", "tinny", "some/folder"])
def test_a_path_where_nothing_is(tmp_path, name):
    with pytest.raises(UserError, match=r"there is no generator at .*; give a StyleGAN \.pkl"):
        load(tmp_path / name)


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(UserError, match=r"notes\.txt is not a generator; give"):
        load(path)


def test_a_folder_of_another_kind(tmp_path):
    with pytest.raises(UserError, match=r"is not a generator, it has no model_index\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"_class_name": "FluxPipeline"}, "describes 'FluxPipeline', only a StableDiffusionPipeline"),
        ({"_class_name": None}, "describes None"),
        ({"unet": ["os", "system"]}, r"takes its unet from \['os', 'system'\]"),
        ({"extra": []}, r"takes its extra from \[\]"),
    ],
)
def test_a_pipeline_that_is_not_stable_diffusion(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        load(index(tmp_path, **changes))


def test_a_pipeline_with_parts_missing(tmp_path):
    folder = index(tmp_path)
    (folder / "vae").rmdir()
    (folder / "tokenizer").rmdir()
    with pytest.raises(UserError, match="is incomplete, it lacks vae, tokenizer"):
        load(folder)


def test_an_index_that_is_no_json(tmp_path):
    (tmp_path / "model_index.json").write_text("{")
    with pytest.raises(UserError, match=r"model_index\.json is not valid JSON"):
        load(tmp_path)


def test_without_diffusers_the_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(UserError, match=r"pip install 'fedsim-htfl\[ktl\]'"):
        load(index(tmp_path))


def test_the_embedded_generator_is_small():
    assert (files("fedsim.generators") / "tiny.safetensors").stat().st_size <= 3_000_000


def test_the_embedded_generator_draws_and_shows():
    generator = load()
    assert (generator.latent_dim, generator.image_shape, generator.num_labels) == (128, (3, 32, 32), 102)
    latents = generator.draw(70, seeded())  # more than one batch
    images = generator.images(latents)
    assert latents.shape == (70, 128)
    assert images.shape == (70, 3, 32, 32)
    assert images.min() >= 0 and images.max() <= 1
    assert torch.equal(latents, generator.draw(70, seeded()))
    assert torch.equal(images, generator.images(latents))
    assert torch.allclose(images[64:], generator.images(latents[64:]), atol=1e-5)


def test_only_the_direction_of_a_tiny_latent_counts():
    generator = load()
    latents = generator.draw(4, seeded())
    assert latents.square().mean(1).tolist() == pytest.approx([1] * 4, abs=1e-5)
    assert torch.allclose(generator.images(0.1 * latents), generator.images(latents), atol=1e-4)


def test_drawn_latents_give_flowers_and_other_vectors_do_not():
    """A flower stands out from a dark ground; what FedKTL calls an invalid latent gives a pattern without one."""
    generator = load()

    def contrast(latents: torch.Tensor) -> float:
        brightness = generator.images(latents).mean(1)
        middle = torch.zeros(32, 32, dtype=torch.bool)
        middle[8:24, 8:24] = True
        return float(brightness[:, middle].mean() - brightness[:, ~middle].mean())

    drawn = contrast(generator.draw(200, seeded()))
    assert drawn > 0.15
    assert drawn > 2 * contrast(torch.randn(200, 128, generator=seeded(1)))


def test_images_of_a_label_are_more_alike_than_of_different_ones():
    generator = load()
    labels = torch.arange(102).repeat_interleave(4)
    images = generator.images(generator.draw_labelled(labels, seeded())).flatten(1)
    groups = images.reshape(102, 4, -1)
    within = groups.var(1).mean()
    assert within < 0.8 * images.var(0).mean()


def test_latents_of_another_size_are_a_mistake():
    with pytest.raises(ValueError, match=r"\(3, 64\), not \(N, 128\)"):
        load().images(torch.zeros(3, 64))


def test_labels_are_chosen_once_each():
    generator = load()
    labels = choose_labels(generator, 102, seeded())
    assert sorted(labels.tolist()) == list(range(102))
    assert torch.equal(choose_labels(generator, 10, seeded()), labels[:10])
    latents, images = labelled_pairs(generator, labels[:10], seeded(1))
    assert torch.equal(latents, generator.draw_labelled(labels[:10], seeded(1)))
    assert torch.equal(images, generator.images(latents))


def test_more_classes_than_labels():
    with pytest.raises(UserError, match="the task has 200 classes but the generator tiny has only 102 labels"):
        choose_labels(load(), 200, seeded())


@pytest.mark.parametrize("label", [-1, 102])
def test_a_label_that_does_not_exist(label):
    with pytest.raises(UserError, match=f"there is no label {label}, the generator tiny has 0 to 101"):
        labelled_pairs(load(), torch.tensor([3, label]), seeded())


def test_nobody_imports_generators_at_module_level():
    """Clients run every other module and must not load this one."""
    package = Path(fedsim.__file__).parent
    for folder in (package, package.parent / "nodes", package.parent / "protocol"):
        for path in folder.rglob("*.py"):
            if package / "generators" in path.parents:
                continue
            for node in ast.parse(path.read_text()).body:
                names = [alias.name for alias in getattr(node, "names", [])]
                source = getattr(node, "module", None) or ""
                imported = [f"{source}.{name}" if source else name for name in names]
                assert not any(name.startswith("fedsim.generators") for name in imported), path


def test_the_noise_mixes_the_anchors_of_the_label():
    network = TinyNetwork()
    network.mapping.anchors_LAH[7, 3, :] = 2.0
    network.mapping.anchors_LAH[7, 4, 0] = 2.0
    noise = torch.full((2, 10), -100.0)
    noise[0, 3] = 100  # all of anchor 3
    noise[1, 3] = noise[1, 4] = 100  # half of each: (2, 1, 1, …), mean square (4 + 127) / 128
    found = network.mapping(noise, torch.tensor([7, 7]))
    assert torch.allclose(found[0], torch.ones(128))
    assert found[1, :2].tolist() == pytest.approx([2 / (131 / 128) ** 0.5, 1 / (131 / 128) ** 0.5])
