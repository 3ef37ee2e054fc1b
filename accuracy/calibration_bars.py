"""Results of `calibration.py` against what they must be, over several networks, as tables."""

from __future__ import annotations

from typing import Any

from spgru.reporting.markdown import table

PLAIN = "plain"
DRAWN = "16 drawn networks"

TOTALS = {"noise": (0.75, 1.25), "": (0.85, 1.15)}
"""Variance over truth, by how the name of the sequences begins."""
FRAMES = {"controlled": (0.7, 1.3), "conv": (0.75, 1.3)}
SPREAD = 0.9
"""of the log ratio over pixels, on sequences without noise"""
WITHIN = 0.9
"""share of single sequences within 0.6 to 1.6"""
RANK = 0.95
TIME = 1.05
"""of a pass, over that of the plain closed form"""


def failures(network: str, kind: str, found: dict[str, Any], pixels: str) -> list[str]:
    """What is beyond the bar, by name."""
    low, high = FRAMES[network]
    problems = {"frames": not low <= min(found["frames"]) <= max(found["frames"]) <= high}
    if network == "conv":
        problems["sequences"] = found["within"] < WITHIN
        problems["rank"] = found["rank"] < RANK
    else:
        least, most = next(bar for name, bar in TOTALS.items() if kind.startswith(name))
        problems["total"] = not least <= found["total"] <= most
        problems["spread"] = "noise" not in kind and found["spreads"][pixels] > SPREAD
    return [name for name, failed in problems.items() if failed]


def passed(network: str, result: dict[str, Any], pixels: str) -> str:
    """How many kinds of sequences each form is within all bars on, of one network."""
    counts = {
        name: sum(not failures(network, kind, found, pixels) for kind, found in kinds.items())
        for name, kinds in result["forms"].items()
    }
    of = len(result["forms"][PLAIN])
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f"{result['network']}: within all bars, of {of} kinds of sequences: {listed}"


def _shown(results: list[dict[str, Any]]) -> list[str]:
    """Forms that some network has chosen, and those to compare them with."""
    compared = {PLAIN, "scale per step", "gains", "gains, scale per step", "gains, scale by level"}
    compared |= {result["search"]["best"] for result in results}
    first = results[0]["forms"]
    return [name for name in first if name in compared and all(name in r["forms"] for r in results)]


def against_bars(network: str, results: list[dict[str, Any]], pixels: str) -> str:
    """For each form and kind of sequences, over all networks; what fails, in how many of them.

    Args:
        pixels: the set of pixels over which the spread is held against its bar
    """
    rows = []
    for name in _shown(results):
        best = sum(result["search"]["best"] == name for result in results)
        label = f"{name} (chosen {best} of {len(results)})" if best else name
        for kind in results[0]["forms"][name]:
            found = [result["forms"][name][kind] for result in results]
            failed = [problem for one in found for problem in failures(network, kind, one, pixels)]
            counts = {problem: failed.count(problem) for problem in dict.fromkeys(failed)}
            frames = [value for one in found for value in one["frames"]]
            row = [
                label,
                kind,
                " ".join(f"{one['total']:.2f}" for one in found),
                f"{min(frames):.2f} to {max(frames):.2f}",
            ]
            if network == "conv":
                row += [
                    f"{100 * min(one['within'] for one in found):.0f} %",
                    f"{min(one['rank'] for one in found):.3f}",
                ]
            else:
                row.append(f"{max(one['spreads'][pixels] for one in found):.2f}")
            row.append(", ".join(f"{name} {n}" for name, n in counts.items()) or "ok")
            rows.append(row)
    header = ["form", "sequences", "total, by network", "frames"]
    header += (
        ["within 0.6 to 1.6", "rank"] if network == "conv" else [f"spread, pixels {pixels}, worst"]
    )
    return table([*header, "beyond the bar, networks"], rows)


def pixel_sets(results: list[dict[str, Any]], kinds: list[str]) -> str:
    """The spread of the log ratio over sets of pixels, and what 16 drawn networks have there."""
    rows = []
    for kind in kinds:
        for pixels, share in results[0]["pixels"][kind].items():
            row = [kind, pixels, f"{100 * share:.1f} %"]
            for result in results:
                best = result["forms"][result["search"]["best"]][kind]["spreads"][pixels]
                plain = result["forms"][PLAIN][kind]["spreads"][pixels]
                drawn = result["drawn"][kind][pixels]
                row.append(f"{plain:.2f} {best:.2f} {drawn:.2f}")
            rows.append(row)
    header = ["sequences", "pixels", "share of them"]
    header += [f"{result['network']}: plain, chosen, {DRAWN}" for result in results]
    return table(header, rows)


def times(results: list[dict[str, Any]]) -> str:
    """Of a pass, over the plain form's."""
    lines = []
    for result in results:
        known = result["search"]["milliseconds_of_a_pass"]
        ratios = {name: value / known[PLAIN] for name, value in known.items()}
        listed = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
        slow = [name for name, ratio in ratios.items() if ratio > TIME]
        lines.append(f"{result['network']}: time over plain {listed}" + (", too slow" * bool(slow)))
    return "\n".join(lines)
