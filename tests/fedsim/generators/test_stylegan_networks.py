"""The networks against a second formulation: in double precision, with per-sample weights and explicit zeros.

It computes from the attributes that a snapshot is written from, so it shares no code with the package.
"""

import numpy as np
import pytest
import stylegan_snapshots as snapshots
import torch
import torch.nn.functional as F
from scipy.signal import convolve2d
from stylegan_snapshots import W_DIM, Z_DIM, Network

from fedsim.errors import UserError
from fedsim.generators import choose_labels, labelled_pairs, load


def array(tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def dense(layer: Network, x: np.ndarray) -> np.ndarray:
    y = x @ (array(layer["weight"]) * float(layer["weight_gain"])).T + array(layer["bias"]) * layer["bias_gain"]
    return np.where(y > 0, y, 0.2 * y) * np.sqrt(2) if layer["activation"] == "lrelu" else y


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-8)


def mapping(network: Network, z: np.ndarray, labels: list[int] | None) -> np.ndarray:
    x = unit(z)
    if labels is not None:
        embed = network["embed"]
        if isinstance(embed, torch.nn.Embedding):
            y = dense(network["embed_proj"], array(embed.weight)[labels])
        else:
            y = dense(embed, np.eye(network["c_dim"])[labels])
        x = np.concatenate([x, unit(y)], 1)
    return dense(network["fc1"], dense(network["fc0"], x))


def resample(
    image: np.ndarray, taps: np.ndarray, up: int, down: int, padding: list[int], gain: float
) -> np.ndarray:
    """One channel: zeros between, padding or cropping, true convolution, every `down`-th sample."""
    taps = np.outer(taps, taps) if taps.ndim == 1 else taps
    spread = np.zeros([size * up for size in image.shape])
    spread[::up, ::up] = image
    left, right, top, bottom = padding
    spread = np.pad(spread, [(max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0))])
    height, width = spread.shape
    spread = spread[max(-top, 0) : height - max(-bottom, 0), max(-left, 0) : width - max(-right, 0)]
    return convolve2d(spread, taps * gain, "valid")[::down, ::down]


def each_channel(x: np.ndarray, *how) -> np.ndarray:
    return np.stack([[resample(channel, *how) for channel in sample] for sample in x])


def convolve(x: np.ndarray, weights: np.ndarray, padding: int) -> np.ndarray:
    """Every sample with weights of its own."""
    pairs = zip(torch.from_numpy(x), torch.from_numpy(weights), strict=True)
    return np.stack([F.conv2d(sample[None], weight, padding=padding)[0].numpy() for sample, weight in pairs])


def fourier_input(network: Network, w: np.ndarray) -> np.ndarray:
    images = []
    for cos, sin, x_shift, y_shift in dense(network["affine"], w):
        length = np.hypot(cos, sin)
        turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, length]]) / length
        shift = np.array([[1, 0, -x_shift / length], [0, 1, -y_shift / length], [0, 0, 1]])
        matrix = turn @ shift @ array(network["transform"])
        freqs = array(network["freqs"])
        width, height = network["size"]
        rate, bandwidth = float(network["sampling_rate"]), float(network["bandwidth"])
        image = np.zeros((len(freqs), height, width))
        for channel, (freq, phase) in enumerate(zip(freqs, array(network["phases"]), strict=True)):
            turned = freq @ matrix[:2, :2]
            amplitude = np.clip(1 - (np.hypot(*turned) - bandwidth) / (rate / 2 - bandwidth), 0, 1)
            for row in range(height):
                for column in range(width):
                    place = np.array([column + 0.5 - width / 2, row + 0.5 - height / 2]) / rate
                    angle = turned @ place + phase + freq @ matrix[:2, 2]
                    image[channel, row, column] = amplitude * np.sin(2 * np.pi * angle)
        images.append(np.tensordot(array(network["weight"]) / np.sqrt(len(freqs)), image, 1))
    return np.stack(images)


def layer3(network: Network, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    weight, scale = array(network["weight"]), dense(network["affine"], w)
    kernel, torgb = network["conv_kernel"], network["is_torgb"]
    if torgb:
        weights = weight * (scale / np.sqrt(weight[0].size))[:, None, :, None, None]
    else:
        weight = weight / np.sqrt((weight**2).mean((1, 2, 3), keepdims=True))
        scale = scale / np.sqrt((scale**2).mean())
        weights = weight * scale[:, None, :, None, None]
        weights = weights / np.sqrt((weights**2).sum((2, 3, 4), keepdims=True) + 1e-8)
    x = convolve(x, weights / np.sqrt(float(network["magnitude_ema"])), kernel - 1)
    x = x + array(network["bias"])[:, None, None]
    if network["up_filter"] is not None:
        up = network["up_factor"]
        x = each_channel(x, array(network["up_filter"]), up, 1, network["padding"], up**2)
    if not torgb:
        x = np.where(x > 0, x, 0.2 * x) * np.sqrt(2)
    if network["conv_clamp"] is not None:
        x = np.clip(x, -network["conv_clamp"], network["conv_clamp"])
    if network["down_filter"] is not None:
        x = each_channel(x, array(network["down_filter"]), 1, network["down_factor"], [0] * 4, 1)
    return x


def synthesis3(network: Network, ws: np.ndarray) -> np.ndarray:
    x = fourier_input(network["input"], ws[:, 0])
    for index, name in enumerate(network["layer_names"]):
        x = layer3(network[name], x, ws[:, index + 1])
        assert x.shape[2:] == tuple(network[name]["out_size"])
    return x * network["output_scale"]


def layer2(network: Network, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    scale = dense(network["affine"], w)
    weights = array(network["weight"]) * scale[:, None, :, None, None]
    weights = weights / np.sqrt((weights**2).sum((2, 3, 4), keepdims=True) + 1e-8)
    if network["up"] == 2:
        # Zeros between, a full convolution with the weights, then the filter; one zero too many at the end.
        spread = np.zeros((*x.shape[:2], 2 * x.shape[2] - 1, 2 * x.shape[3] - 1))
        spread[:, :, ::2, ::2] = x
        x = convolve(spread, weights[..., ::-1, ::-1].copy(), 2)
        x = each_channel(x, array(network["resample_filter"]), 1, 1, [1] * 4, 4)
    else:
        x = convolve(x, weights, 1)
    x = x + array(network["noise_const"]) * array(network["noise_strength"])
    x = x + array(network["bias"])[:, None, None]
    x = np.where(x > 0, x, 0.2 * x) * float(network["act_gain"])
    return np.clip(x, -network["conv_clamp"], network["conv_clamp"])


def colours2(network: Network, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    scale = dense(network["affine"], w) * float(network["weight_gain"])
    weights = array(network["weight"]) * scale[:, None, :, None, None]
    return convolve(x, weights, 0) + array(network["bias"])[:, None, None]


def synthesis2(network: Network, ws: np.ndarray) -> np.ndarray:
    first, second = network["b4"], network["b8"]
    x = layer2(first["conv1"], np.stack([array(first["const"])] * len(ws)), ws[:, 0])
    image = colours2(first["torgb"], x, ws[:, 1])
    x = layer2(second["conv1"], layer2(second["conv0"], x, ws[:, 1]), ws[:, 2])
    image = each_channel(image, array(second["resample_filter"]), 2, 1, [2, 1, 2, 1], 4)
    return image + colours2(second["torgb"], x, ws[:, 3])


NETWORKS = {
    "stylegan3 t": (lambda: snapshots.stylegan3(1), synthesis3),
    "stylegan3 r": (lambda: snapshots.stylegan3(2, kernel=1, radial=True), synthesis3),
    "stylegan3 conditional": (lambda: snapshots.stylegan3(3, num_labels=4), synthesis3),
    "stylegan-xl": (lambda: snapshots.stylegan3(4, num_labels=5, family="xl"), synthesis3),
    "stylegan2": (lambda: snapshots.stylegan2(5), synthesis2),
    "stylegan2 conditional": (lambda: snapshots.stylegan2(6, num_labels=3), synthesis2),
}


@pytest.fixture(params=NETWORKS)
def pair(request, tmp_path):
    """A network as written, its synthesis in double precision, and the same network read back."""
    make, synthesis = NETWORKS[request.param]
    network = make()
    return network, synthesis, load(snapshots.write(tmp_path / "network.pkl", network))


def assert_close(found: torch.Tensor, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(array(found) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_mapping(pair):
    network, _, generator = pair
    z = torch.randn(4, Z_DIM, generator=torch.Generator().manual_seed(0))
    labels = [2, 0, 1, 2] if network["c_dim"] else None
    found = generator.mapping(z, torch.tensor(labels) if labels else None)
    expected = mapping(network["mapping"], array(z), labels)
    assert_close(found, expected)
    mean = array(network["mapping.w_avg"])
    mean = mean[labels] if mean.ndim == 2 else mean
    truncated = generator.mapping.truncate(found, torch.tensor(labels) if labels else None, 0.7)
    assert_close(truncated, mean + 0.7 * (expected - mean))


def test_synthesis_with_another_w_in_every_layer(pair):
    network, synthesis, generator = pair
    ws = torch.randn(3, 4, W_DIM, generator=torch.Generator().manual_seed(1))
    assert_close(generator.synthesis(ws), synthesis(network["synthesis"], array(ws)))


def test_a_stored_transform_turns_and_fades_the_input(tmp_path):
    network = snapshots.stylegan3()
    network["synthesis.input"].state["_buffers"]["transform"] = torch.tensor(
        [[1.6, -0.4, 0.1], [0.3, 1.8, -0.2], [0, 0, 1]]
    )
    generator = load(snapshots.write(tmp_path / "network.pkl", network))
    ws = torch.randn(2, 4, W_DIM, generator=torch.Generator().manual_seed(1))
    assert_close(generator.synthesis(ws), synthesis3(network["synthesis"], array(ws)))


def test_images_are_the_clamped_synthesis_of_one_w_for_all_layers(pair):
    network, synthesis, generator = pair
    latents = torch.randn(5, W_DIM, generator=torch.Generator().manual_seed(2)) * 3
    generator.batch_size = 2  # the last batch is smaller
    found = generator.images(latents)
    raw = synthesis(network["synthesis"], np.repeat(array(latents)[:, None], 4, 1))
    assert found.dtype == torch.float32
    assert_close(found, np.clip((raw + 1) / 2, 0, 1))


def test_an_image_does_not_depend_on_the_others_in_its_batch(pair):
    _, _, generator = pair
    latents = generator.draw(6, torch.Generator().manual_seed(3))
    together = generator.images(latents)
    generator.batch_size = 1
    assert (generator.images(latents) - together).abs().max() < 1e-6


def test_draws_are_what_the_mapping_makes_of_noise_and_uniform_labels(pair):
    network, _, generator = pair
    found = generator.draw(7, torch.Generator().manual_seed(4))
    random = torch.Generator().manual_seed(4)
    labels = torch.randint(network["c_dim"], (7,), generator=random).tolist() if network["c_dim"] else None
    z = torch.randn(7, Z_DIM, generator=random)
    assert_close(found, mapping(network["mapping"], array(z), labels))
    assert (generator.latent_dim, generator.image_shape) == (W_DIM, (3, 8, 8))
    assert generator.num_labels == network["c_dim"]


def test_pairs_of_chosen_labels(tmp_path):
    network = snapshots.stylegan3(num_labels=5, family="xl")
    generator = load(snapshots.write(tmp_path / "network.pkl", network))
    latents, images = labelled_pairs(generator, torch.tensor([4, 4, 1]), torch.Generator().manual_seed(5))
    z = torch.randn(3, Z_DIM, generator=torch.Generator().manual_seed(5))
    assert_close(latents, mapping(network["mapping"], array(z), [4, 4, 1]))
    assert torch.equal(images, generator.images(latents))


def test_an_unconditional_network_has_no_labels_to_choose_from(tmp_path):
    generator = load(snapshots.write(tmp_path / "plain.pkl", snapshots.stylegan2()))
    random = torch.Generator().manual_seed(0)
    with pytest.raises(UserError, match=r"plain\.pkl is unconditional"):
        choose_labels(generator, 3, random)
    with pytest.raises(UserError, match=r"plain\.pkl is unconditional"):
        labelled_pairs(generator, torch.tensor([0]), random)
