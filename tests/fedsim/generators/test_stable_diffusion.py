"""A Stable Diffusion pipeline of a few thousand random weights, saved by diffusers and loaded again."""

import json
import shutil
from importlib import import_module

import pytest
import torch

from fedsim.compat import import_torchvision
from fedsim.errors import UserError
from fedsim.generators import choose_labels, load

import_torchvision()  # before the imports below, which import it themselves
diffusers, transformers = import_module("diffusers"), import_module("transformers")


def tokenizer(folder):
    """Every letter is a token, at the end of a word another one."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary, merges = folder / "vocabulary.json", folder / "merges.txt"
    vocabulary.write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    merges.write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer(str(vocabulary), str(merges), model_max_length=8)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        text = transformers.CLIPTextConfig(
            vocab_size=54,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=8,
            bos_token_id=52,
            eos_token_id=53,
        )
        return diffusers.StableDiffusionPipeline(
            unet=diffusers.UNet2DConditionModel(
                sample_size=8,
                layers_per_block=1,
                block_out_channels=(8, 16),
                norm_num_groups=4,
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
                cross_attention_dim=16,
                attention_head_dim=4,
            ),
            vae=diffusers.AutoencoderKL(
                block_out_channels=(8, 8),
                down_block_types=("DownEncoderBlock2D",) * 2,
                up_block_types=("UpDecoderBlock2D",) * 2,
                latent_channels=4,
                norm_num_groups=4,
            ),
            text_encoder=transformers.CLIPTextModel(text),
            tokenizer=tokenizer(tmp_path_factory.mktemp("tokenizer")),
            scheduler=diffusers.PNDMScheduler(skip_prk_steps=True, steps_offset=1),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )


@pytest.fixture(scope="module")
def folder(pipeline, tmp_path_factory):
    path = tmp_path_factory.mktemp("pipelines") / "small"
    pipeline.save_pretrained(path)
    return path


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copied")


def test_sizes_come_from_the_networks(folder):
    generator = load(folder)
    assert generator.name == "small"
    assert generator.latent_dim == 4 * 8 * 8
    assert generator.image_shape == (3, 16, 16)  # the small decoder doubles the size once
    assert generator.num_labels == 0


def test_latents_are_normal_noise(folder):
    latents = load(folder).draw(3, torch.Generator().manual_seed(7))
    assert torch.equal(latents, torch.randn(3, 256, generator=torch.Generator().manual_seed(7)))


def test_images_are_those_of_the_pipeline_with_the_published_settings(folder, pipeline):
    generator = load(folder)
    latents = generator.draw(5, torch.Generator().manual_seed(7))
    images = generator.images(latents)
    assert images.shape == (5, 3, 16, 16)
    assert images.min() >= 0 and images.max() <= 1
    pipeline.set_progress_bar_config(disable=True)
    expected = pipeline(
        "a cat",
        latents=latents[4].reshape(1, 4, 8, 8),
        num_inference_steps=50,
        guidance_scale=7.5,
        output_type="pt",
    ).images
    assert torch.allclose(images[4:], expected, atol=1e-5)
    assert torch.equal(generator.images(latents), images)


def test_half_precision_folders_are_computed_in_single(folder, tmp_path):
    again = diffusers.StableDiffusionPipeline.from_pretrained(folder, low_cpu_mem_usage=False, safety_checker=None)
    for part in (again.unet, again.vae, again.text_encoder):
        part.half()
    again.save_pretrained(tmp_path / "half")
    generator = load(tmp_path / "half")
    images = generator.images(generator.draw(1, torch.Generator().manual_seed(0)))
    parts = (generator.pipeline.unet, generator.pipeline.vae, generator.pipeline.text_encoder)
    assert {parameter.dtype for part in parts for parameter in part.parameters()} == {torch.float32}
    assert images.isfinite().all()


def test_it_has_no_labels(folder):
    with pytest.raises(UserError, match="small is unconditional"):
        choose_labels(load(folder), 2, torch.Generator())


def test_a_folder_without_weights_is_refused_in_one_sentence(copied):
    next((copied / "unet").glob("*.safetensors")).unlink()
    with pytest.raises(UserError, match="cannot be loaded") as caught:
        load(copied)
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_not_opened(copied):
    weights = next((copied / "unet").glob("*.safetensors"))
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(UserError, match="cannot be loaded"):
        load(copied)
