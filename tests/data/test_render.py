from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from spgru.data import Layout, MovingMNIST
from spgru.data.randomness import noise_keys
from spgru.data.render import _COUNTER_STEP, _MULTIPLIERS, add_noise, render, unit_interval


@pytest.mark.parametrize(("batch", "digits", "frames"), [(1, 1, 1), (3, 2, 4), (2, 3, 5)])
def test_render_equals_the_slow_loop(paste, batch, digits, frames):
    rng = np.random.Generator(np.random.PCG64(batch))
    images = rng.integers(0, 256, (11, 28, 28), dtype=np.uint8)
    corners = rng.integers(-28, 65, (frames, batch, digits, 2))
    layout = Layout(rng.integers(0, 11, (batch, digits)), corners)
    assert np.array_equal(render(torch.tensor(images), layout).numpy(), paste(images, layout))


def test_every_edge_and_corner(paste):
    images = np.random.Generator(np.random.PCG64(1)).integers(1, 256, (1, 28, 28), dtype=np.uint8)
    places = (-28, -27, -1, 0, 1, 36, 37, 63, 64)
    corners = np.array([(y, x) for y in places for x in places]).reshape(-1, 1, 1, 2)
    layout = Layout(np.zeros((1, 1), dtype=np.int64), corners)
    assert np.array_equal(render(torch.tensor(images), layout).numpy(), paste(images, layout))


@pytest.mark.parametrize(("batch", "digits", "frames"), [(1, 1, 1), (3, 2, 4), (2, 3, 2)])
def test_the_kernel_equals_the_slow_loop(paste, batch, digits, frames):
    """On a GPU if there is one, else in Triton's interpreter."""
    pytest.importorskip("triton")
    from spgru.data.kernels import paste as kernel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = np.random.Generator(np.random.PCG64(batch))
    images = rng.integers(0, 256, (11, 28, 28), dtype=np.uint8)
    corners = rng.integers(-28, 65, (frames, batch, digits, 2))
    chosen = rng.integers(0, 11, (batch, digits))
    tensors = (
        torch.tensor(x, device=device) for x in (images, chosen, *np.moveaxis(corners, -1, 0))
    )
    found = kernel(*tensors, 64)
    assert np.array_equal(found.cpu().numpy(), paste(images, Layout(chosen, corners)))


@pytest.mark.parametrize("boundary", ["bounce", "leave"])
def test_batches_equal_the_slow_loop(paste, boundary):
    data = MovingMNIST(3, 2, split="test", seed=4, frames=6, boundary=boundary, speed=0.2)
    expected = paste(data.images.numpy(), data.layout(2)).astype(np.float32) / np.float32(255)
    assert np.array_equal(data.batch(2).numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_interval_is_correctly_rounded(dtype):
    values = unit_interval(torch.arange(256, dtype=torch.uint8), dtype)
    exact = np.arange(256) / 255
    assert np.array_equal(values.numpy(), exact.astype(values.numpy().dtype))


def slow_noise(key, pixel):
    """The hash in unbounded integers, for one pixel."""

    def signed(value):
        return (value + 2**31) % 2**32 - 2**31

    bits = signed(pixel * _COUNTER_STEP + int(key[0]))
    bits ^= bits >> 16
    bits = signed(signed(bits * _MULTIPLIERS[0]) + int(key[1]))
    bits ^= bits >> 15
    bits = signed(bits * _MULTIPLIERS[1])
    return ((bits >> 8) + 2**23) / 2**24


def test_noise_is_the_hash_written_slowly():
    keys = noise_keys(7, "train", 5, 3)
    noise = add_noise(torch.zeros(4, 3, 64, 64, dtype=torch.float64), keys, 1.0)
    rng = np.random.Generator(np.random.PCG64(0))
    for t, b, y, x in rng.integers(0, (4, 3, 64, 64), (300, 4)):
        assert noise[t, b, y, x].item() == slow_noise(keys[b], int(t * 4096 + y * 64 + x))


@pytest.fixture(scope="module")
def uniform():
    """(20, 16, 64, 64) of noise, standardised to mean 0 and variance 1."""
    noise = torch.zeros(20, 16, 64, 64, dtype=torch.float64)
    add_noise(noise, noise_keys(3, "train", 0, 16), 1.0)
    return (noise - 0.5) * 12**0.5


def test_noise_is_uniform(uniform):
    n = uniform.numel()
    assert uniform.mean().abs() < 4 / n**0.5
    # The squares of a standardised uniform have variance 9/5 - 1.
    assert (uniform.square().mean() - 1).abs() < 4 * (0.8 / n) ** 0.5
    bins = torch.histc(uniform, 256, -(3**0.5), 3**0.5)
    chi_square = ((bins - n / 256) ** 2 / (n / 256)).sum()
    assert abs(chi_square - 255) < 4 * (2 * 255) ** 0.5


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
@pytest.mark.parametrize("lag", [1, 2, 4, 8])
def test_noise_is_uncorrelated(uniform, dim, lag):
    length = uniform.shape[dim] - lag
    ahead, behind = uniform.narrow(dim, lag, length), uniform.narrow(dim, 0, length)
    assert (ahead * behind).mean().abs() < 4 / ahead.numel() ** 0.5


def test_noise_is_the_same_for_any_thread_count():
    data = MovingMNIST(4, noise=0.4, split="test")
    one = data.batch(0)
    torch.set_num_threads(2)
    try:
        two = data.batch(0)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(one, two)


@pytest.mark.parametrize("amplitude", [0.2, 0.6, 1.0])
def test_noise_is_added_and_clipped(amplitude):
    clean = MovingMNIST(8, 1, split="test", seed=2).batch(0)
    noisy = MovingMNIST(8, 1, split="test", seed=2, noise=amplitude).batch(0)
    assert noisy.max() <= 1
    assert (noisy[clean == 1] == 1).all()
    background = noisy[clean == 0].double()
    assert background.min() >= 0
    assert background.max() <= amplitude
    n = background.numel()
    assert (background.mean() - amplitude / 2).abs() < 4 * amplitude / (12 * n) ** 0.5
    # E min(c, U) for a pixel of value 1 - c: the clip bites where the noise exceeds c.
    bright = (clean > 0) & (clean < 1)
    room = 1 - clean[bright].double()
    added = (noisy[bright].double() - clean[bright].double()) / amplitude
    c = (room / amplitude).clamp(max=1)
    expected, second = c - c**2 / 2, c**2 - 2 * c**3 / 3
    error = (second - expected**2).sum().sqrt() / len(c)
    assert (added - expected).mean().abs() < 4 * error


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"noise": 0.6}, {"digits": 3, "boundary": "leave"}])
def test_devices_agree_to_the_last_bit(dtype, options):
    on_cpu = MovingMNIST(16, seed=5, dtype=dtype, **options)
    on_gpu = MovingMNIST(16, seed=5, dtype=dtype, device="cuda", **options)
    for k in (0, 7):
        assert torch.equal(on_cpu.batch(k), on_gpu.batch(k).cpu())


@cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_host_never_waits_for_the_device():
    data = MovingMNIST(16, noise=0.2, device="cuda")
    data.batch(0)  # the first call sets up pinned memory, for which it does wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        frames = data.batch(1)  # raises if the host waits
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(frames.cpu(), MovingMNIST(16, noise=0.2).batch(1))


@cuda
def test_128_sequences_cost_less_than_a_millisecond():
    data = MovingMNIST(128, device="cuda")
    for k in range(10):
        data.batch(k)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for k in range(10, 110):  # within the first random order: what a run pays but once per epoch
        data.batch(k)
    torch.cuda.synchronize()
    assert (time.perf_counter() - began) / 100 < 1e-3
