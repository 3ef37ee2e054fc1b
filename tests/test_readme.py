from __future__ import annotations

import re
import tomllib
from pathlib import Path

import spgru

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_commands_are_those_of_the_makefile() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)$", README.read_text(), flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M)


def test_the_readme_is_a_screen_and_a_half() -> None:
    assert README.read_text().count("\n") <= 75


def test_the_readmes_links_lead_somewhere() -> None:
    """Those of the documentation are checked when it is built."""
    text = README.read_text()
    links = re.findall(r"\]\(([^)#:]+)", text) + re.findall(r'src(?:set)?="([^":]+)"', text)
    assert len(links) > 10
    for link in links:
        assert (README.parent / link).is_file(), link


def test_one_version_everywhere() -> None:
    root = README.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text(), flags=re.M)
    changed = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), flags=re.M)
    assert cited is not None
    assert changed is not None
    assert spgru.__version__ == project["version"] == cited[1] == changed[1]


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
