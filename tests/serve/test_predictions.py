"""What the page shows is what the library says."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from serve.conftest import MOVER, SCENE
from spgru.calibration import uncalibrated
from spgru.data import MovingMNIST
from spgru.data.mnist import load_mnist
from spgru.serve import scene as scenes
from spgru.serve.scene import SAMPLES
from spgru.training import load_model


def post(client: TestClient, scene: dict[str, Any], **query: str) -> Any:
    answer = client.post("/api/scene", json=scene, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json() if query.get("as", "json") == "json" else answer.content


def pictures(text: str) -> torch.Tensor:
    found = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, 64, 64)
    return torch.from_numpy(found.copy())


def in_test_set(data: MovingMNIST) -> dict[str, int]:
    """The page's name for the digit of the first sequence."""
    number = int(data.layout(0).digits[0, 0])
    labels = load_mnist("test").labels
    digit = int(labels[number])
    sample = int((labels[:number] == digit).sum())
    assert sample < SAMPLES, "choose another seed"
    return {"digit": digit, "sample": sample}


@pytest.mark.parametrize(("angle", "speed"), [(20.0, 0.05), (35.0, 0.065)])
def test_a_described_sequence_is_that_of_the_study(
    client: TestClient, angle: float, speed: float
) -> None:
    data = MovingMNIST.controlled(1, split="test", seed=5, angle=angle, speed=speed)
    mover = {**MOVER, **in_test_set(data), "angle": angle, "speed": speed}
    found = post(client, {**SCENE, "digits": [mover]})
    frames = (255 * data.batch(0)[:, 0]).round().to(torch.uint8)
    assert torch.equal(pictures(found["seen"]), frames[:10])
    assert torch.equal(pictures(found["truth"]), frames[10:])

    (shown,) = found["predictions"]
    with torch.no_grad():
        pixels = load_model("one-digit").model.predict(data.batch(0)[:10])
    expected = pixels.var.double().sum((1, 2, 3))
    torch.testing.assert_close(
        torch.tensor(shown["variance"]).double(), expected, rtol=1e-4, atol=0
    )
    error = (pixels.mean - data.batch(0)[10:]).double().square().sum((1, 2, 3))
    torch.testing.assert_close(torch.tensor(shown["error"]).double(), error, rtol=1e-4, atol=1e-3)
    means = (255 * pixels.mean[:, 0]).round()
    assert (pictures(shown["mean"]).float() - means).abs().max() <= 1
    top = pixels.std.max().item()
    assert shown["std_top"] == pytest.approx(top, rel=1e-4)
    stds = (255 * (pixels.std[:, 0] / top).sqrt()).round()
    assert (pictures(shown["std"]).float() - stds).abs().max() <= 1


def test_plain_and_calibrated(client: TestClient) -> None:
    found = {
        kind: post(client, {**SCENE, "variance": kind})["predictions"][0]["variance"]
        for kind in ("plain", "calibrated")
    }
    seen = pictures(post(client, SCENE)["seen"])[:, None].float() / 255
    model = load_model("one-digit").model
    with torch.no_grad(), uncalibrated(model):
        plain = model.predict(seen).var.double().sum((1, 2, 3))
    assert found["plain"] == pytest.approx(plain.tolist(), rel=1e-4)
    assert sum(found["calibrated"]) > 1.2 * sum(found["plain"])


def test_a_network_that_draws(client: TestClient) -> None:
    scene = {**SCENE, "networks": ["one-digit", "one-digit-mc-lstm"], "draws": 7}
    ours, theirs = post(client, scene)["predictions"]
    assert (ours["form"], ours["draws"]) == ("calibrated", None)
    assert (theirs["form"], theirs["draws"]) == ("draws", 7)
    seen = pictures(post(client, SCENE)["seen"])[:, None].float() / 255
    model = load_model("one-digit-mc-lstm").model
    generator = torch.Generator().manual_seed(0)
    drawn = model.predict(seen, draws=7, generator=generator).var.double().sum((1, 2, 3))
    assert theirs["variance"] == pytest.approx(drawn.tolist(), rel=1e-3)
    assert ours["milliseconds"] > 0
    assert theirs["milliseconds"] > 0


@pytest.mark.parametrize(
    "change",
    [
        {"digits": [{**MOVER, "angle": 35}]},
        {"digits": [{**MOVER, "speed": 0.065}]},
        {"noise": 0.3},
        {"digits": [MOVER, {**MOVER, "x": 24, "y": 30}, {**MOVER, "x": 4, "y": 32}]},
    ],
    ids=["angle", "speed", "noise", "three digits"],
)
def test_what_is_unfamiliar_raises_the_variance(client: TestClient, change: Any) -> None:
    familiar, other = (
        sum(post(client, scene)["predictions"][0]["variance"]) for scene in (SCENE, SCENE | change)
    )
    assert other > 2 * familiar


def test_the_familiar_path_lies_in_the_range_of_training(client: TestClient) -> None:
    networks = {one["name"]: one for one in client.get("/api/about").json()["networks"]}
    for one in networks.values():
        assert set(one["range"]["std_top"]) == set(one["range"]["forms"])
    low, _, high = map(sum, networks["one-digit"]["range"]["forms"]["calibrated"])
    sums = [
        sum(
            post(client, {**SCENE, "digits": [MOVER | {"sample": k}]})["predictions"][0]["variance"]
        )
        for k in range(20)
    ]
    assert sum(low <= one <= high for one in sums) >= 10


def test_a_drawing_is_a_digit(client: TestClient) -> None:
    image = load_mnist("test").images[int(np.flatnonzero(load_mnist("test").labels == 3)[0])]
    drawing = {k: v for k, v in MOVER.items() if k not in ("digit", "sample")}
    drawing["drawing"] = base64.b64encode(image.tobytes()).decode()
    drawn, chosen = (post(client, {**SCENE, "digits": [d]}) for d in (drawing, MOVER))
    assert drawn["seen"] == chosen["seen"]
    assert drawn["images"] == chosen["images"] == [drawing["drawing"]]


def test_noise_is_on_the_input_alone_and_repeats(client: TestClient) -> None:
    clean = post(client, SCENE)
    noisy, again, other = (post(client, {**SCENE, "noise": 0.4, "seed": s}) for s in (0, 0, 1))
    assert noisy["truth"] == clean["truth"]
    assert noisy["seen"] == again["seen"] != other["seen"]
    added = pictures(noisy["seen"]).float() - pictures(clean["seen"])
    dark = pictures(clean["seen"]) == 0
    # Unif(0, 0.4) on 35,000 pixels: 51 with a standard error of 0.16.
    assert added[dark].mean().item() == pytest.approx(51, abs=1)


def test_bouncing_digits_stay_on_the_canvas(client: TestClient) -> None:
    mover = {**MOVER, "x": 30, "y": 30, "speed": 0.1, "angle": 45}
    whole = None
    for boundary, stays in (("bounce", True), ("leave", False)):
        found = post(client, {**SCENE, "digits": [mover], "boundary": boundary})
        whole = whole or int(pictures(found["seen"])[0].long().sum())
        assert (int(pictures(found["truth"])[-1].long().sum()) == whole) == stays


@pytest.mark.parametrize(
    ("place", "angle", "following"),
    [
        ((0, 7), 0, (10, 7)),  # from the left edge to the right
        ((0, 7), 180, (10, 7)),  # it has just bounced off the left edge
        ((5, 7), 0, (15, 7)),  # a step before it would have been outside
        ((36, 7), 180, (25, 7)),
        ((5, 0), 90, (5, 10)),
        ((7, 36), 270, (7, 25)),
        ((20, 13), 0, (30, 13)),
    ],
)
def test_bouncing_digits_start_where_asked(
    monkeypatch: pytest.MonkeyPatch, place: Any, angle: float, following: Any
) -> None:
    found: list[Any] = []

    def render(images: Any, layout: Any) -> Any:
        found.append(layout.corners)
        return torch.zeros(20, 1, 64, 64, dtype=torch.uint8)

    monkeypatch.setattr(scenes, "render", render)
    mover = scenes.Mover(bytes(28 * 28), y=place[1], x=place[0], angle=angle, speed=0.3)
    scenes.draw(scenes.Scene((mover,), 0.0, 0, "bounce"))
    assert found[0].shape == (20, 1, 1, 2)
    assert [tuple(corner[::-1]) for corner in found[0][:2, 0, 0].tolist()] == [place, following]


def test_an_animation(client: TestClient) -> None:
    scene = {**SCENE, "networks": ["one-digit", "one-digit-mc-lstm"], "draws": 3}
    animation = Image.open(io.BytesIO(post(client, scene, **{"as": "gif"})))
    assert animation.format == "GIF"
    assert getattr(animation, "n_frames", 1) == 20


def test_arrays(client: TestClient) -> None:
    found = post(client, SCENE)
    with np.load(io.BytesIO(post(client, SCENE, **{"as": "npz"}))) as arrays:
        assert sorted(arrays) == ["one_digit_mean", "one_digit_var", "seen", "truth"]
        sums = arrays["one_digit_var"].astype(np.float64).sum((1, 2))
    assert found["predictions"][0]["variance"] == pytest.approx(sums.tolist(), rel=1e-5)
