"""The code on README and on the pages of the documentation runs, block after block.

A page's blocks share their names. What they take for granted, or would take too long, is in
comments that readers do not see, `<!-- python, not shown ... -->`, and runs in its place; so do
assertions about what came out. Blocks of other languages are commands and output.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"```python\n(.*?)```|<!-- python, not shown\n(.*?)-->", re.S)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]
GUARD = 'if __name__ == "__main__":'
NEEDS = {"many-series": "distributed", "onnx": "onnxscript", "training": "lightning"}


def test_there_is_code_to_run() -> None:
    found = {page.name for page in WITH_CODE}
    assert {"README.md", "install.md", "features.md"} <= found
    guides = {page.name for page in (ROOT / "docs" / "guides").glob("*.md")}
    assert {"convert.md", "forecast.md", "training.md", "alarm.md", "variance.md"} <= guides & found


@pytest.mark.filterwarnings("ignore")  # of packages that guides use: GluonTS, Lightning, ONNX
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    text = page.read_text()
    names: dict[str, object] = {"__name__": page.stem}
    for found in CODE.finditer(text):
        code = found[1] or found[2]
        if GUARD in code:
            # Its workers import the script, so it has to be one. Fewer of them: cores are two.
            (tmp_path / "script.py").write_text(code.replace("workers=8", "workers=2"))
            subprocess.run([sys.executable, "script.py"], check=True, timeout=120)
        line = text.count("\n", 0, found.start()) + 1  # so that errors name the page's line
        exec(compile("\n" * line + code, str(page), "exec"), names)
    if "print(spgru.audit(" in text:
        assert "closed/truth" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page: Path) -> None:
    """Python under another name would not run."""
    languages = set(re.findall(r"^ *```([^\s`{]+)", page.read_text(), flags=re.M))
    assert not languages & {"py", "python3", "pycon", "ipython", "Python"}, languages


def test_every_screenshot_is_on_its_page() -> None:
    images = {path.name for path in (ROOT / "docs" / "images" / "serve").iterdir()}
    shown = re.findall(r"images/serve/(\S+?)\)", (ROOT / "docs/guides/serve-states.md").read_text())
    assert set(shown) == images
