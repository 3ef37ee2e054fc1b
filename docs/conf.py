"""How the documentation site is built: `make docs`."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

from spgru import __version__

warnings.filterwarnings("ignore", "Using `json`-module")  # GluonTS, when it is imported

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

project = "spgru"
copyright = "the authors of spgru, MIT licence"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"spgru {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
highlight_language = "text"  # blocks that are not Python are commands and output
# Okabe and Ito's blue, as in the pictures.
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

# Docstrings name code in single backticks.
default_role = "code"
autodoc_default_options = {"members": True}
autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
autosummary_generate = False

# -- pages that stand elsewhere in the repository ------------------------------------------------
#
# A page that is nothing but an include of a file outside docs/ shows that file. Its links, written
# for where it stands, are turned to where the page is; and links of all pages to such a file go to
# its page. Pages name the light picture, as other readers of Markdown need it; the site has both.

INCLUDE = re.compile(r"^```\{include\} (\S+)\n```$", re.M)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)([^)\s]*)\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\((\S+)-light\.(svg|png)\)")
TWICE = r"![\1](\2-light.\3){.only-light}![\1](\2-dark.\3){.only-dark}"


def _shown() -> dict[Path, Path]:
    """File of the repository -> page of the site."""
    return {
        (page.parent / found).resolve(): page
        for page in DOCS.rglob("*.md")
        for found in INCLUDE.findall(page.read_text())
    }


def _turn_links(text: str, written_in: Path, page: Path, shown: dict[Path, Path]) -> str:
    def turned(link: re.Match[str]) -> str:
        text, address, place = link.groups()
        target = (written_in.parent / address).resolve()
        if "://" in address or not target.exists():
            return link[0]  # if it is a mistake, Sphinx says so
        if target.is_dir():
            return text  # a site has no listing of folders
        # Markdown without a page is a file like any other.
        is_page = target in shown or DOCS in target.parents
        scheme = "path:" if target.suffix == ".md" and not is_page else ""
        address = os.path.relpath(shown.get(target, target), page.parent)
        return f"[{text}]({scheme}{address}{place})"

    return LINK.sub(turned, text)


def _read_page(app: Any, name: str, source: list[str]) -> None:
    page, shown = DOCS / f"{name}.md", _shown()

    def included(directive: re.Match[str]) -> str:
        file = (page.parent / directive[1]).resolve()
        return _turn_links(file.read_text(), file, page, shown)

    text = _turn_links(source[0], page, page, shown)
    source[0] = PICTURE.sub(TWICE, INCLUDE.sub(included, text))


# -- docstrings -----------------------------------------------------------------------------------


def _plain(line: str) -> str:
    """Our docstrings are plain text with code in backticks: nothing else is markup."""
    parts = re.split(r"(`+[^`]*`+)", line)
    parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _read_docstring(
    app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]
) -> None:
    found: list[str] = []
    indent, after_blank, in_code = 0, False, False
    for line in lines:
        before, indent = indent, len(line) - len(line.lstrip()) if line.strip() else indent
        if after_blank and indent > before == 0:  # an example: what follows "Args:" has no blank
            found += [".. code-block:: python", ""]
            in_code = True
        in_code = in_code and indent > 0
        found.append(line if in_code else _plain(line))
        after_blank = not line.strip()
    if what in ("attribute", "data", "property"):
        found.insert(0, "")  # else napoleon takes what stands before a colon for a type
    lines[:] = found


def _shorten_signature(
    app: Any, what: str, name: str, thing: object, options: Any, given: str | None, back: str | None
) -> tuple[str | None, str | None]:
    """An array of numbers is `ndarray`: its type says nothing of its shape."""
    array = re.compile(r"ndarray\[tuple\[Any, \.\.\.\], dtype\[\w+\]\]")
    shorter = [None if text is None else array.sub("ndarray", text) for text in (given, back)]
    return shorter[0], shorter[1]


def _is_foreign(
    app: Any, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what a class inherits from torch, sktime or Python, and what only torch calls."""
    if name == "extra_repr":
        return True
    thing = getattr(thing, "fget", thing)  # of a property
    module = getattr(thing, "__module__", None) or "spgru"
    return None if module.startswith("spgru") else True


def setup(app: Any) -> None:
    app.connect("autodoc-skip-member", _is_foreign)
    app.connect("autodoc-process-signature", _shorten_signature)
    app.connect("source-read", _read_page)
    app.connect("autodoc-process-docstring", _read_docstring, priority=400)  # before napoleon
