"""The page in a real browser: Debian's Chromium, driven by Playwright.

    SPGRU_SCREENSHOTS=docs/images/serve pytest tests/serve/test_page.py -n 0

also writes a picture of every state there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spgru.data import MovingMNIST

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=30_000)

DESKTOP = {"width": 1320, "height": 900}
PHONE = {"width": 390, "height": 844}
SECONDS = 30_000
"""Playwright's limit for every wait, in milliseconds."""


# Of this module alone: as long as it lives, Playwright's event loop runs in this thread.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # Chromium's own sandbox does not start as root, as in containers.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = driver.chromium.launch(executable_path=chromium, args=options)
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens the page; at the end nothing may have gone wrong, or to another host."""
    pages: list[Any] = []
    requests: list[str] = []
    troubles: list[str] = []

    def open_one(size: dict[str, int] = DESKTOP, tab: str = "", **options: Any) -> Any:
        page = browser.new_page(viewport=size, accept_downloads=True, **options)
        page.set_default_timeout(SECONDS)
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: _note(message, troubles))
        page.goto(f"{address}{tab}")
        pages.append(page)
        if not tab:
            page.locator("#variance-chart .dot").first.wait_for()
        return page

    yield open_one
    for page in pages:
        page.close()
    assert requests
    foreign = [url for url in requests if not url.startswith((address, "blob:", "data:"))]
    assert not foreign
    assert not troubles


def _note(message: Any, troubles: list[str]) -> None:
    # Chromium itself reports every request without success; the page shows those.
    if message.type == "error" and not message.text.startswith("Failed to load resource"):
        troubles.append(message.text)


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Keeps a picture of the page where SPGRU_SCREENSHOTS names a folder."""
    folder = os.environ.get("SPGRU_SCREENSHOTS")

    def take(page: Any, name: str, whole: bool = True) -> None:
        if folder:
            page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=whole)

    return take


def slide(page: Any, label: str, value: float) -> None:
    """Move a slider and wait for the answer."""
    page.get_by_label(label, exact=True).fill(str(value))
    settle(page)


def settle(page: Any) -> None:
    expect(page.locator("#moving")).to_have_attribute("aria-busy", "false", timeout=SECONDS)


def height(page: Any, network: str = "one-digit") -> float:
    """Of the curve in the chart, in pixels above the axis' end: larger is higher."""
    dots = page.locator(f'#variance-chart .dot[data-network="{network}"]')
    expect(dots).to_have_count(10)
    return -float(np.mean([float(dot.get_attribute("cy")) for dot in dots.all()]))


def brightness(page: Any, canvas: str) -> float:
    """Of the brightest pixel of a map, 0 to 255: magma becomes brighter all the way."""
    code = """name => {
        const {data, width} = document.getElementById(name).getContext('2d')
            .getImageData(0, 0, 64, 64);
        let most = 0;
        for (let k = 0; k < data.length; k += 4)
            most = Math.max(most, (data[k] + data[k + 1] + data[k + 2]) / 3);
        return most;
    }"""
    return float(page.evaluate(code, canvas))


def test_the_angle_raises_the_chart(open_page: Any, picture: Any) -> None:
    page = open_page()
    settle(page)
    expect(page.locator("#verdict")).to_contain_text("Inside the range of training")
    picture(page, "familiar")
    heights, ticks = [height(page)], page.locator("#scales .ticks").inner_text()
    dim = brightness(page, "frame-std")
    for angle in (27, 35):
        slide(page, "Angle", angle)
        heights.append(height(page))
    assert heights == sorted(heights)
    assert heights[-1] > heights[0] + 10
    # The map is brighter on the scale that it had.
    assert page.locator("#scales .ticks").inner_text() == ticks
    assert brightness(page, "frame-std") > dim + 20
    expect(page.locator("#verdict")).to_contain_text("Outside the range of training")
    picture(page, "angle")
    page.get_by_role("button", name="Back to the path of training").click()
    settle(page)
    assert height(page) == pytest.approx(heights[0], abs=0.5)


def test_noise_and_more_digits(open_page: Any, picture: Any) -> None:
    page = open_page()
    settle(page)
    before = height(page)
    slide(page, "Noise on the input", 0.3)
    assert height(page) > before + 20
    picture(page, "noise")
    slide(page, "Noise on the input", 0)
    assert height(page) == pytest.approx(before, abs=0.5)
    for name in ("Add a second digit", "Add a third digit"):
        page.get_by_role("button", name=name).click()
    settle(page)
    assert height(page) > before + 10
    expect(page.locator("#add-digit")).to_be_disabled()
    expect(page.get_by_role("group", name="Digit 3").locator("select")).to_be_focused()
    expect(page.get_by_role("group", name="Digit 2").get_by_label("Angle")).to_have_count(1)
    picture(page, "three-digits")
    page.get_by_role("button", name="Remove digit 2").click()
    expect(page.get_by_role("group", name="Digit 2").locator("select")).to_be_focused()
    settle(page)
    expect(page.locator(".digit")).to_have_count(2)


def test_plain_variance_and_the_network_that_draws(open_page: Any, picture: Any) -> None:
    page = open_page()
    settle(page)
    text = page.locator("#scales").inner_text()
    page.get_by_label("Plain").check()
    settle(page)
    expect(page.locator("#scales")).not_to_have_text(text)
    page.get_by_label("Beside an LSTM that samples (MC dropout)").check()
    settle(page)
    assert height(page, "one-digit-mc-lstm") > height(page)
    page.get_by_label("Draws", exact=True).fill("12")
    expect(page.locator("#times")).to_contain_text("MC-LSTM, 12 draws")
    expect(page.locator("#times")).to_contain_text(re.compile(r"SP-GRU, one pass\s*[\d.]+ ms"))
    expect(page.locator("#frame-beside-std")).to_be_visible()
    # One scale for both: where the larger number is, the map is brighter.
    expect(page.locator("#scales canvas")).to_have_count(1)
    expect(page.locator("#scales")).to_contain_text(re.compile(r"Largest here: SP-GRU .*, MC-LSTM"))
    assert brightness(page, "frame-beside-std") > brightness(page, "frame-std") + 20
    picture(page, "beside")


def test_another_network_waits_to_be_asked(open_page: Any, picture: Any) -> None:
    page = open_page()
    settle(page)
    page.get_by_label("Model").select_option("two-digits-conv")
    expect(page.locator(".digit")).to_have_count(2)
    expect(page.locator("#verdict")).to_contain_text("is to be computed")
    # Digits that bounce start on the canvas, anywhere: there is no path of training.
    assert [int(one.input_value()) for one in page.get_by_label("Start, across").all()] == [0, 24]
    assert page.get_by_label("Start, across").first.get_attribute("min") == "0"
    expect(page.get_by_text("Dashed: the path of training")).to_be_hidden()
    expect(page.locator("#reset")).to_have_text("Start over")
    picture(page, "slow-network")
    page.get_by_role("button", name="Compute").click()
    expect(page.locator("#slow-text")).to_have_text("Computing …")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Compute")).to_be_visible()
    expect(page.locator("#slow-text")).to_contain_text("Set the sequence, then compute it")
    page.get_by_label("Model").select_option("one-digit")
    settle(page)
    expect(page.locator("#verdict")).to_contain_text("Inside the range")


def test_a_slow_prediction_is_of_the_sequence_as_it_is_set(open_page: Any, picture: Any) -> None:
    """A change while it computes: the old computation is of no use, and the button starts one."""
    page = open_page()
    page.get_by_label("Model").select_option("two-digits-conv")
    text, button = page.locator("#slow-text"), page.locator("#compute")
    angle = page.get_by_label("Angle").first
    button.click()
    expect(text).to_have_text("Computing …")
    angle.fill("77")
    expect(text).to_contain_text("Set the sequence, then compute it")
    expect(button).to_have_text("Compute")

    def is_asked(request: Any) -> bool:
        return "two-digits-conv" in (request.post_data or "")

    with page.expect_request(is_asked) as asked:
        button.click()
    assert asked.value.post_data_json["digits"][0]["angle"] == 77
    expect(text).to_have_text("This is the prediction for the sequence as it is set.")
    height(page, "two-digits-conv")
    expect(page.locator("#verdict")).to_contain_text("the range of training")
    expect(page.locator("#moving-error")).to_be_hidden()
    picture(page, "slow-network-done")


def test_play_pause_and_scrub(open_page: Any) -> None:
    page = open_page()
    settle(page)
    page.get_by_label("Frame", exact=True).fill("3")
    expect(page.locator("#scrub-text")).to_have_text("frame 3, input")
    expect(page.locator("#caption-there")).to_have_text("Input")
    page.get_by_role("button", name="Play").click()
    expect(page.locator("#scrub-text")).not_to_have_text("frame 3, input")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_downloads(open_page: Any) -> None:
    page = open_page()
    settle(page)
    for button, name, start in (
        ("Numbers (CSV)", "spgru.csv", b"frame,one-digit_variance"),
        ("Arrays (.npz)", "spgru.npz", b"PK"),
        ("Animation (GIF)", "spgru.gif", b"GIF8"),
    ):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=button).click()
        assert waiting.value.suggested_filename == name
        assert Path(waiting.value.path()).read_bytes().startswith(start)
    # While the server computes it, the button says so, and asks no second time.
    held: list[Any] = []
    page.route("**/api/scene?as=gif", lambda route: held.append(route))
    button = page.locator("#save-gif")
    button.click()
    expect(button).to_have_text("Computing …")
    button.click()
    with page.expect_download():
        held[0].continue_()
    expect(button).to_have_text("Animation (GIF)")
    assert len(held) == 1


def test_good_and_bad_uploads(open_page: Any, picture: Any, tmp_path: Path) -> None:
    page = open_page()
    settle(page)
    frames = (255 * MovingMNIST.controlled(3, split="test", angle=30).batch(0)).byte().numpy()
    np.save(tmp_path / "mine.npy", frames)
    page.get_by_label("Choose a .npy file").set_input_files(tmp_path / "mine.npy")
    expect(page.locator("#upload-name")).to_have_text("mine.npy: 3 sequences")
    settle(page)
    assert page.locator("#scene-card").get_attribute("inert") is not None
    first = height(page)
    slide(page, "Sequence", 2)
    assert height(page) != first
    picture(page, "upload")

    # After a file that is refused, the good one is there as it was.
    np.save(tmp_path / "wrong.npy", np.zeros((10, 32, 32), np.uint8))
    page.get_by_label("Choose a .npy file").set_input_files(tmp_path / "wrong.npy")
    error = page.locator("#moving-error")
    expect(error).to_contain_text("wrong.npy: The array has shape (10, 1, 32, 32); save uint8")
    expect(page.get_by_label("Sequence", exact=True)).to_have_value("2")
    expect(page.locator("#upload-name")).to_have_text("mine.npy: 3 sequences")
    slide(page, "Sequence", 0)
    expect(error).to_be_hidden()
    assert height(page) == first

    page.get_by_role("button", name="Back to the digits").click()
    settle(page)
    expect(page.locator("#upload-state")).to_be_hidden()
    page.get_by_label("Choose a .npy file").set_input_files(tmp_path / "wrong.npy")
    expect(error).to_contain_text("shape (10, 1, 32, 32); save uint8")
    picture(page, "upload-refused")
    (tmp_path / "large.npy").write_bytes(bytes(9_000_000))
    page.get_by_label("Choose a .npy file").set_input_files(tmp_path / "large.npy")
    expect(error).to_contain_text("8 MB is the limit")
    slide(page, "Angle", 21)
    expect(error).to_be_hidden()


def test_a_forecast_of_a_table(open_page: Any, picture: Any, tmp_path: Path) -> None:
    page = open_page(tab="#forecast")
    expect(page.get_by_text("No forecast yet")).to_be_visible()
    expect(page.get_by_role("button", name="Forecast", exact=True)).to_be_disabled()
    picture(page, "forecast-empty")
    page.get_by_label("Paste CSV with a header").fill("day,note\n2026-01-01,hello\n")
    page.get_by_label("Paste CSV with a header").blur()
    expect(page.locator("#forecast-error")).to_contain_text("No column holds numbers only")
    picture(page, "forecast-refused")

    page.get_by_label("Paste CSV with a header").fill("a;b\n1;2\n")
    page.get_by_label("Paste CSV with a header").blur()
    expect(page.locator("#forecast-error")).to_contain_text("separated by semicolons")
    years = "\n".join(f"{1900 + k},{k % 7}" for k in range(60))
    page.get_by_label("Paste CSV with a header").fill(f"year,level\n{years}\n")
    page.get_by_label("Paste CSV with a header").blur()
    expect(page.locator("#time")).to_have_value("year")
    expect(page.locator("#column")).to_have_value("level")
    # A click that ends an edit counts, and is for the table as edited.
    page.get_by_label("Paste CSV with a header").fill(f"year,level\n{years}\n1960,\n")
    with page.expect_request("**/api/forecast") as asked:
        page.get_by_role("button", name="Forecast", exact=True).click()
    assert asked.value.post_data_json["csv"].endswith("1960,\n")
    page.get_by_role("button", name="Cancel").click()

    steps = np.arange(150)
    values = 50 + 10 * np.sin(steps * 2 * np.pi / 7) + np.random.default_rng(0).normal(size=150)
    days = np.datetime64("2026-01-01") + steps
    rows = [f"{day},{value:.2f}" for day, value in zip(days, values, strict=True)]
    (tmp_path / "mine.csv").write_text("\n".join(["day,visitors", *rows]))
    page.get_by_label("Choose a CSV file").set_input_files(tmp_path / "mine.csv")
    expect(page.locator("#column")).to_have_value("visitors")
    expect(page.locator("#time")).to_have_value("day")
    page.get_by_label("Steps to forecast").fill("14")
    page.get_by_role("button", name="Forecast", exact=True).click()
    expect(page.locator("#forecast-chart .median")).to_be_visible(timeout=4 * SECONDS)
    expect(page.locator("#forecast-title")).to_have_text("visitors: the next 14 steps")
    expect(page.locator("#forecast-chart .label")).to_have_text(["time", "visitors"])
    expect(page.locator("#parts-text")).to_contain_text(re.compile(r"noise [\d.]+ %"))
    page.locator("#forecast-chart").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#forecast-readout")).to_contain_text("2026-05-31")
    picture(page, "forecast")
    with page.expect_download() as waiting:
        page.locator("#forecast-save").click()
    lines = Path(waiting.value.path()).read_text().splitlines()
    assert len(lines) == 15


def test_dark_by_the_system_and_by_the_switch(open_page: Any, picture: Any) -> None:
    def ground(page: Any) -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return float(np.mean([float(part) for part in re.findall(r"[\d.]+", colour)[:3]]))

    light, dark = open_page(color_scheme="light"), open_page(color_scheme="dark")
    assert ground(light) > 200
    assert ground(dark) < 50
    settle(dark)
    picture(dark, "dark")
    light.get_by_label("Theme").select_option("dark")
    assert ground(light) < 50
    light.reload()
    assert ground(light) < 50
    dark.get_by_label("Theme").select_option("light")
    assert ground(dark) > 200


def test_the_width_of_a_phone(open_page: Any, picture: Any) -> None:
    page = open_page(PHONE, has_touch=True, is_mobile=True)
    settle(page)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= PHONE["width"]
    picture(page, "phone")
    # The pictures stay in view while the sliders below move.
    page.get_by_label("Angle", exact=True).scroll_into_view_if_needed()
    expect(page.locator("#frame-std")).to_be_in_viewport()
    expect(page.locator("#variance-small .curve")).to_be_in_viewport()
    expect(page.get_by_label("Angle", exact=True)).to_be_in_viewport()
    drawn = page.locator("#variance-small .curve").get_attribute("d")
    before = height(page)
    slide(page, "Angle", 35)
    assert height(page) > before
    assert page.locator("#variance-small .curve").get_attribute("d") != drawn
    picture(page, "phone-slider", whole=False)
    page.get_by_role("tab", name="Forecast a table").click()
    assert page.evaluate(wide) <= PHONE["width"]
    picture(page, "phone-forecast")


def test_everything_by_keyboard(open_page: Any, picture: Any) -> None:
    page = open_page()
    settle(page)
    before = height(page)
    reached: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = "document.activeElement"
        name = page.evaluate(
            f"{focused}.getAttribute('aria-label') || {focused}.labels?.[0]?.textContent.trim()"
            f" || {focused}.textContent.trim()"
        )
        if name == "Angle":
            for _ in range(15):
                page.keyboard.press("ArrowRight")
            settle(page)
            assert height(page) > before
        if (name or "").startswith("Start of digit 1"):
            page.keyboard.press("ArrowDown")
            expect(page.get_by_label("Start, down")).to_have_value("8")
            picture(page, "keyboard", whole=False)
            page.keyboard.press("ArrowUp")
        if name == "Draw digit 1":
            page.keyboard.press("Enter")
            expect(page.get_by_role("dialog")).to_be_visible()
            for key in (" ", "ArrowDown", " ", "ArrowDown", " "):
                page.keyboard.press(key)
            picture(page, "drawing", whole=False)
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_be_hidden()
        reached.append(name or "")
        if name == "Animation (GIF)":
            break
    for wanted in ("Moving digits", "Play", "Frame", "Angle", "Noise on the input", "Draw digit 1"):
        assert any(name.startswith(wanted) for name in reached), (wanted, reached)
    page.get_by_role("tab", name="Moving digits").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Forecast a table")).to_be_focused()
    expect(page.locator("#forecast")).to_be_visible()

    table = page.get_by_label("Paste CSV with a header")
    while not table.evaluate("one => one === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.insert_text("v\n" + "1\n2\n3\n" * 30)
    expect(page.get_by_role("button", name="Forecast", exact=True)).to_be_enabled()
    for name in (
        "csv-file", "csv-example", "column", "time", "horizon", "season", "level", "positive",
        "thorough", "forecast-go",
    ):  # fmt: skip
        page.keyboard.press("Tab")
        expect(page.locator(f"#{name}")).to_be_focused()
        if name == "horizon":
            page.keyboard.press("ArrowUp")
    with page.expect_request("**/api/forecast") as asked:
        page.keyboard.press("Enter")
    assert asked.value.post_data_json["horizon"] == 25
    expect(page.get_by_role("button", name="Forecast", exact=True)).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Forecast", exact=True)).to_be_focused()


def test_a_drawing_and_a_dragged_start(open_page: Any, picture: Any) -> None:
    page = open_page()
    settle(page)
    page.get_by_role("button", name="Draw digit 1").click()
    box = page.locator("#draw-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 4 / 5, steps=8)
    page.mouse.up()
    page.get_by_role("button", name="Use it").click()
    settle(page)
    expect(page.locator(".digit select")).to_have_value("drawn")

    handle = page.locator(".handle").bounding_box()
    middle = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 60, middle[1] + 30, steps=5)
    page.mouse.up()
    settle(page)
    assert int(page.get_by_label("Start, across").input_value()) > 5
    assert int(page.get_by_label("Start, down").input_value()) > 10


def test_a_server_that_is_gone_is_told(open_page: Any, picture: Any) -> None:
    page = open_page()
    settle(page)
    page.route("**/api/scene*", lambda route: route.abort())
    page.get_by_label("Angle", exact=True).fill("30")
    expect(page.locator("#moving-error")).to_contain_text("The server does not answer")
    picture(page, "no-server")
