"""The C functions: how they are compiled, kept and loaded, and what they check."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_cases import needs_compiled

import spgru
from spgru.recurrent.kernels.native import cells, functions, library

pytestmark = needs_compiled


@pytest.fixture
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for compiled files; what this process has loaded already stays loaded.

    They are compiled without optimisation, ten times as fast: these tests do not run them.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "_FLAGS", ("-O0", *library._FLAGS[1:]))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def load() -> ctypes.CDLL:
    return library.load.__wrapped__()


def compiled_file(root: Path) -> Path:
    (found,) = (root / "spgru").glob("cells-*.so")
    return found


def test_the_table_of_signatures_is_that_of_the_c_source() -> None:
    text = "".join(path.read_text() for path in library._SOURCES).replace("\\\n", " ")
    macros = dict(re.findall(r"#define (FORWARD|BACKWARD|WHOLE_STEPS?)\s+(.*)", text))
    macros["WHOLE_STEPS"] = macros["WHOLE_STEPS"].replace("WHOLE_STEP", macros["WHOLE_STEP"])
    found = {}
    for name, arguments in re.findall(r"^void (\w+)\(([^)]*)\) \{", text, re.M):
        words = macros.get(arguments.strip(), arguments)
        kinds: dict[str, list[str]] = {"in": [], "out": [], "long": []}
        # Places in memory of whole numbers are "const long *".
        plain = words.replace("const long *", "in ")
        order = [argument.split() for argument in plain.split(",")]
        for kind, argument in order:
            kinds[kind].append(argument)
        pointers = [argument for kind, argument in order if kind != "long"]
        found[name] = pointers, kinds["long"]
    declared = {name: (s.pointers, s.numbers) for name, s in functions.SIGNATURES.items()}
    assert found == declared


def test_compiled_files_are_kept_for_the_user_alone(cache_root: Path) -> None:
    load()
    assert (cache_root / "spgru").stat().st_mode & 0o777 == 0o700
    first = compiled_file(cache_root)
    assert first.stat().st_mode & 0o077 == 0
    before = first.stat().st_mtime_ns
    load()
    assert compiled_file(cache_root).stat().st_mtime_ns == before


def belongs_to_another(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)


def can_be_written_to(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def is_a_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def is_a_file(folder: Path) -> None:
    folder.write_text("")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(
            belongs_to_another,
            "belongs to user 12345",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away"),
        ),
        (can_be_written_to, "can be written to by others; run chmod go-w"),
        (is_a_link, "is no folder of its own"),
        (is_a_file, "File exists"),
    ],
)
def test_a_folder_that_others_control_is_not_used(
    spoil: Callable[[Path], None], reason: str, cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = cache_root / "private"
    private.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    folder = cache_root / "spgru"
    spoil(folder)
    with pytest.warns(RuntimeWarning, match=f"compiles its kernels anew .*{reason}"):
        loaded = load()
    assert loaded.gru_forward
    assert not list(cache_root.rglob("*.so"))
    # Nor is anything left behind in the folder for temporary files.
    assert not list(private.iterdir())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("spoil", [truncate, empty, replace_by_link, open_to_all, change_a_byte])
def test_a_file_that_is_damaged_or_open_is_compiled_again(
    spoil: Callable[[Path], None], cache_root: Path
) -> None:
    load()
    path = compiled_file(cache_root)
    good = path.read_bytes()
    spoil(path)
    assert load().gru_forward
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o077 == 0
    assert library._parted(path.read_bytes())[1] == library._parted(good)[1] or spoil is not empty


def test_all_words_of_cc_are_used(cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = cache_root / "wrapper"
    script.write_text('#!/bin/sh\necho "$@" > "$(dirname "$0")/words"\nexec "$@"\n')
    script.chmod(0o700)
    monkeypatch.setenv("CC", f"{script} gcc -m64")
    assert load().gru_forward
    assert (cache_root / "words").read_text().startswith("gcc -m64 -O0 -march=native ")


def test_a_compiler_that_never_ends_is_stopped(
    cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_TIME_LIMIT", 0.2)
    with pytest.raises(library.CompileError, match=r"'sleep 60' took longer than 0 seconds"):
        library.compile_into(cache_root / "x.so", ["sh", "-c", "sleep 60"], "")
    assert not list(cache_root.iterdir())


def test_a_compiler_that_fails_is_quoted(cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(library.CompileError, match=r"(?s)could not compile .*error: "):
        library.compile_into(cache_root / "x.so", ["gcc"], "this is no C")
    assert not list(cache_root.iterdir())

    def fails() -> None:
        raise library.CompileError("no luck")

    monkeypatch.setattr(library, "load", fails)
    assert library.obstacle.__wrapped__() == "no luck"


def step_arguments() -> dict[str, Any]:
    tensors: dict[str, Any] = dict.fromkeys(functions.SIGNATURES["gru_forward"].pointers)
    for name in ("x_mean", "x_var", "p_mean", "p_var"):
        tensors[name] = torch.rand(2, 9)
    for name in ("h_mean", "h_var", "new_mean", "new_var"):
        tensors[name] = torch.rand(2, 3)
    return {**tensors, "operand_moments": torch.rand(2, 6), "rows": 2, "size": 3}


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"x_mean": torch.rand(2, 8)}, ValueError, "x_mean as at least 18 contiguous float32"),
        ({"x_mean": torch.rand(9, 2).T}, ValueError, "x_mean as at least 18 contiguous float32"),
        ({"h_var": torch.rand(2, 3).double()}, ValueError, "got .* of torch.float64"),
        ({"h_var": torch.rand(2, 3, device="meta")}, ValueError, "on meta"),
        ({"bias": torch.rand(8)}, ValueError, "bias as at least 9"),
        ({"p_var": None}, TypeError, "gru_forward needs p_var"),
        ({"more": torch.rand(1)}, TypeError, "gru_forward has no argument more"),
    ],
)
def test_pointers_are_checked_before_c_reads_them(change: Any, error: Any, reason: str) -> None:
    forward = cells.KERNELS["gru"].forward
    forward(**step_arguments())
    with pytest.raises(error, match=reason):
        forward(**{**step_arguments(), **change})


def test_the_checks_do_not_depend_on_assertions() -> None:
    script = (
        "import torch\n"
        "from spgru.recurrent.kernels.native.cells import KERNELS\n"
        "from spgru.recurrent.kernels.native.functions import SIGNATURES\n"
        "names = SIGNATURES['gru_forward'].pointers\n"
        "try:\n"
        "    KERNELS['gru'].forward(**dict.fromkeys(names, torch.rand(1)), rows=5, size=7)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("gru_forward takes x_mean as at least 105"), done.stderr


# With values of all kinds, NaN and infinity among them.
SANITIZED = """
#include <stdio.h>
int main(void) {{
    float values[] = {{0, -0.0f, 1, -1, 30, -300, 1e30f, -1e30f, NAN, INFINITY, -INFINITY}};
    enum {{ n = sizeof(values) / sizeof(float) }};
    block mean, var, a, b;
    slopes s;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {{
            mean[0] = values[i];
            var[0] = fabsf(values[j]);
            logistic(1, mean, var, a, b);
            logistic_with_slopes(1, mean, var, &s);
            if (isnan(mean[0]) && !isnan(a[0])) return 1;
        }}
    float x[2 * 12] = {{0}}, h[2 * 3] = {{0}}, w[12 * 3] = {{0}}, new[4][2 * 3], scratch[400];
    gru_steps(x, x, w, w, 0, w, w, w, w, 0, w, w, w, h, h, 0, 0, new[0], new[1], 0, 0, scratch,
              1, 3, 3, 2, 0);
    lstm_steps(x, 0, w, w, w, 0, 0, w, w, w, w, w, w, h, h, h, h, new[0], new[1], new[2], new[3],
              scratch, 1, 3, 3, 2, 1);
    rnn_steps(x, x, w, w, w, w, w, w, w, w, 0, 0, 0, h, h, 0, 0, new[0], new[1], 0, 0, scratch,
              1, 3, 3, 2, 0);
    gru_reset_before_steps(x, x, w, w, w, w, w, w, w, w, w, w, 0, h, h, 0, 0, new[0], new[1], 0, 0,
                          scratch, 1, 3, 3, 2, 1);
    puts("clean");
    return 0;
}}
"""


def test_nothing_undefined_happens_in_c(tmp_path: Path) -> None:
    program, text = tmp_path / "program", tmp_path / "all.c"
    text.write_text(library.source() + SANITIZED.replace("{{", "{").replace("}}", "}"))
    flags = [
        "-O1", "-g", "-fsanitize=undefined,float-cast-overflow,address",
        "-fno-sanitize-recover=all", "-Wno-unknown-pragmas",
    ]  # fmt: skip
    subprocess.run(["gcc", *flags, str(text), "-o", str(program), "-lm"], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.stdout == "clean\n", done.stderr[-2000:]


def test_nan_stays_nan() -> None:
    x = torch.randn(3, 2, 4)
    x[1, 0, 2] = torch.nan
    for reset_after in (True, False):
        output, _ = spgru.GRU(4, 3, backend="compiled", reset_after=reset_after)(x)
        assert output.mean[1:, 0].isnan().all()
        assert output.var[1:, 0].isnan().all()
        assert not output.mean[:, 1].isnan().any()
