from __future__ import annotations

import gzip
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from spgru.data import load_mnist

# How often each digit occurs, as published with the data.
COUNTS = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}


@pytest.mark.parametrize("split", ["train", "test"])
def test_packaged_copy_is_mnist(split):
    images, labels = load_mnist(split)
    assert images.dtype == labels.dtype == np.uint8
    assert images.shape == (len(labels), 28, 28)
    assert np.bincount(labels).tolist() == COUNTS[split]


def test_pixels_have_the_mean_and_deviation_everybody_normalises_with():
    images = load_mnist("train").images / np.float32(255)
    assert images.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert images.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)


def test_arrays_are_shared_and_therefore_read_only():
    assert load_mnist("test").images is load_mnist("test").images
    with pytest.raises(ValueError, match="read-only"):
        load_mnist("test").images[0, 0, 0] = 1


def test_importing_the_package_leaves_the_data_alone():
    code = "import sys, spgru; sys.exit(any(m.startswith('spgru.data') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


IMAGES = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)
LABELS = np.array([7, 2, 1], dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.mark.parametrize("joint", ["-", "."])
@pytest.mark.parametrize("packed", [False, True])
def test_reads_idx_files(tmp_path, joint, packed):
    for kind, array in (("images", IMAGES), ("labels", LABELS)):
        name = f"t10k-{kind}{joint}idx{array.ndim}-ubyte"
        if packed:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (tmp_path / name).write_bytes(idx(array))
    images, labels = load_mnist("test", tmp_path)
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(labels, LABELS)


@pytest.mark.parametrize("keys", [("train_images", "train_labels"), ("x_train", "y_train")])
def test_reads_an_archive(tmp_path, keys):
    np.savez(tmp_path / "anything.npz", **dict(zip(keys, (IMAGES, LABELS), strict=True)))
    images, labels = load_mnist("train", str(tmp_path))
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(labels, LABELS)


def test_unknown_split():
    with pytest.raises(ValueError, match=r"split is 'valid'; pass 'train' or 'test'"):
        load_mnist("valid")


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"directory .*nowhere.* is not a folder; pass"):
        load_mnist("test", tmp_path / "nowhere")


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no t10k-images-idx3-ubyte .*put the MNIST"):
        load_mnist("test", tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(IMAGES))
    with pytest.raises(FileNotFoundError, match=r"no t10k-labels-idx1-ubyte .* beside t10k-images"):
        load_mnist("test", tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-5], r"has 2363 bytes but its header asks for 2368; fetch it again"),
        (lambda raw: b"<html>" + raw, r"does not start like an IDX file .*first bytes 3c 68 74 6d"),
        (lambda raw: b"", r"does not start like an IDX file .*first bytes missing"),
        (lambda raw: idx(IMAGES[:0]), r"has no images"),
        (lambda raw: idx(IMAGES[:, :20]), r"images of shape \(3, 20, 28\) and dtype uint8; save"),
        (lambda raw: idx(IMAGES[:2]), r"labels of shape \(3,\) and dtype uint8 for 2 images"),
    ],
)
def test_damaged_idx_files(tmp_path, damage, message):
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(damage(idx(IMAGES)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS))
    with pytest.raises(ValueError, match=message):
        load_mnist("test", tmp_path)


@pytest.mark.parametrize("damage", [lambda raw: raw[:60], lambda raw: b"no gzip", lambda raw: b""])
def test_damaged_gzip(tmp_path, damage):
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(damage(gzip.compress(idx(IMAGES))))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS))
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte.gz .*; fetch it again"):
        load_mnist("test", tmp_path)


def test_damaged_archive(tmp_path):
    file = tmp_path / "mnist.npz"
    np.savez_compressed(file, test_images=IMAGES, test_labels=LABELS)
    whole = file.read_bytes()
    broken = bytearray(whole)
    broken[150:160] = bytes(10)
    for content in (whole[:-40], bytes(broken), b"", b"not an archive"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"mnist.npz is not a readable .npz archive .*replace"):
            load_mnist("test", tmp_path)


def test_an_archive_that_announces_terabytes_is_refused_before_memory_is_asked_for(
    tmp_path, monkeypatch
):
    header = {"descr": "|u1", "fortran_order": False, "shape": (10**10, 28, 28)}
    with zipfile.ZipFile(tmp_path / "mnist.npz", "w") as archive:
        for name in ("test_images.npy", "test_labels.npy"):
            with archive.open(name, "w") as member:
                np.lib.format.write_array_header_1_0(member, header)
    monkeypatch.setattr(np, "load", None)  # which would ask for it
    with pytest.raises(ValueError, match=r"its header announces uint8 \[10000000000, 28, 28\], "):
        load_mnist("test", tmp_path)


def test_archive_of_something_else(tmp_path):
    np.savez(tmp_path / "mnist.npz", weights=IMAGES)
    with pytest.raises(ValueError, match=r"holds weights but not test_images and test_labels"):
        load_mnist("test", tmp_path)
    with (tmp_path / "mnist.npz").open("wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(ValueError, match=r"readable .npz archive"):
        load_mnist("test", tmp_path)


def test_nothing_is_unpickled(tmp_path):
    labels = np.array([object()], dtype=object)
    np.savez(tmp_path / "mnist.npz", test_images=IMAGES, test_labels=labels)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_mnist("test", tmp_path)


def test_several_archives(tmp_path):
    np.savez(tmp_path / "a.npz", test_images=IMAGES, test_labels=LABELS)
    np.savez(tmp_path / "b.npz", test_images=IMAGES[:1], test_labels=LABELS[:1])
    with pytest.raises(ValueError, match=r"holds 2 .npz archives; name the one to use mnist.npz"):
        load_mnist("test", tmp_path)
    np.savez(tmp_path / "mnist.npz", test_images=IMAGES[:2], test_labels=LABELS[:2])
    assert len(load_mnist("test", tmp_path).labels) == 2
