from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    exec(compile(code, str(README), "exec"), {})
    assert "closed/truth" in capsys.readouterr().out


def test_the_readmes_commands_are_those_of_the_makefile() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)$", README.read_text(), flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M)


def test_published_tables_are_there() -> None:
    found = [
        (document.name, block, text)
        for document in (README.parent / "docs").glob("*.md")
        for block, text in re.findall(
            r"<!-- (\w+) -->\n(.*?)<!-- end \1 -->", document.read_text(), flags=re.S
        )
    ]
    assert found
    for name, block, text in found:
        assert text.count("\n") > 2, f"{name}: {block} is empty"
