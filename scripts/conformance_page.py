"""Writes docs/conformance.md from the results that `make conformance` left in benchmarks/results/."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "conformance.md"
HOWS = ("generated", "template", "library")

HEAD = """# Operator conformance

Every entry of torch's own operator database (`torch.testing._internal.common_methods_invocations.op_db`), in float32, int64
and bool, runs through `backend="polytile"` and is compared with eager: results, their dtypes and strides, inputs that the
operator changes, and gradients where there are any; once with static and once with dynamic shapes. Where rounding differs,
float64 decides. An entry is right if all of this is. What is known not to be right is listed below with its reason; entries
of which Dynamo captures no graph for any backend are run by eager, and are compared all the same.

`make conformance` repeats the run and writes this page; `make conformance CONFORMANCE="--only softmax"` runs a part of it.
It can be stopped at any time and goes on where it was. `CONFORMANCE="--device cuda --jobs 8"` runs it on a GPU; on one that is
lent for minutes, `--seconds 500 --out DIR` and later `--resume DIR/conformance_cuda.jsonl` spread it over several sessions. A
part of the entries, spread over the families, is among the tests.
"""


def table(heads: list[str], rows: list[list[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"
    yield ""


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def device_section(results: Mapping[str, Any]) -> Iterator[str]:
    """One device: how many entries are right, who runs their operators, and what is not right."""
    entries, environment, counts = results["entries"], results["environment"], results["counts"]
    kind = results["suite"].removeprefix("conformance_")
    device = environment.get("accelerator", "") if kind == "cuda" else environment.get("processor", "")
    yield f"## {'CUDA' if kind == 'cuda' else 'CPU'}"
    yield ""
    right = counts["right"] + counts["stale"]
    run = counts["entries"] - counts["absent"]
    more = f" {counts['absent']} more {'is' if counts['absent'] == 1 else 'are'} not run, as eager has no such operator there."
    absent = more if counts["absent"] else ""
    left = f" {counts['left']} are not checked yet." if counts.get("left") else ""
    left += by_sources(results)
    yield (
        f"{right} of {run} entries are right ({share(right, run)}), {counts['uncaptured']} equal to eager without a graph "
        f"(together {share(right + counts['uncaptured'], run)}), {counts['listed']} listed, {counts['wrong']} wrong."
        f"{absent}{left} PyTorch {results['settings']['torch']}, {device or kind}; at most "
        f"{results['settings']['samples'] or 'all'} samples an entry."
    )
    yield ""
    yield from families(entries)
    yield from operators(results)
    yield from listed(entries)


def by_sources(results: Mapping[str, Any]) -> str:
    """Which revision was checked last, and what of the above is of earlier sources: nothing here is of a later one."""
    run = [row for row in results["entries"].values() if row["verdict"] != "absent"]
    now, earlier = ([row for row in run if ("sources" in row) is before] for before in (False, True))
    revision = results["environment"].get("revision", "unknown")
    if not earlier:
        return f" All are of revision {revision}."
    rights = [sum(row["verdict"] in ("right", "stale") for row in rows) for rows in (now, earlier)]
    return (
        f" Only {len(now)} of these were checked at revision {revision}, the last that was ({rights[0]} right); {len(earlier)} "
        f"({rights[1]} right) are what earlier sources gave, as the results say of each."
    )


def families(entries: Mapping[str, Any]) -> Iterator[str]:
    """Right entries by family, and how many of the ATen operators that their graphs consist of run how."""
    members: dict[str, list[Any]] = defaultdict(list)
    for row in entries.values():
        if row["verdict"] != "absent":
            members[row["family"] or "?"].append(row)
    rows = []
    for family, found in sorted(members.items()):
        right = sum(row["verdict"] in ("right", "stale") for row in found)
        uses = Counter({how: sum(len(row.get(how, ())) for row in found) for how in HOWS})
        total = sum(uses.values())
        rows.append([family, f"{right} of {len(found)}", *(share(uses[how], total) for how in HOWS)])
    yield "Operators of the entries' graphs that run as generated loops, as matmul templates, as library calls:"
    yield ""
    yield from table(["family", "right", *HOWS], rows)


def operators(results: Mapping[str, Any]) -> Iterator[str]:
    """The ATen operators that some entry left to the library, with the reason given there."""
    used: dict[str, set[str]] = defaultdict(set)
    for row in results["entries"].values():
        for how in HOWS:
            for operator in row.get(how, ()):
                used[operator].add(how)
    counts = Counter("library" if hows == {"library"} else "generated" if "library" not in hows else "both"
                     for hows in used.values())  # fmt: skip
    yield (
        f"Of {len(used)} ATen operators met, {counts['generated']} are always generated, {counts['both']} are generated or "
        f"left to the library as their arguments ask, and {counts['library']} are library calls."
    )
    yield ""
    reasons: dict[str, list[str]] = defaultdict(list)
    for operator, reason in sorted(results["library_reasons"].items()):
        plain = "no lowering" if reason.endswith("has no lowering") else reason.rstrip(".")
        reasons[plain].append(operator.removeprefix("aten.").removesuffix(".default"))
    rows = [[reason, ", ".join(f"`{name}`" for name in names)] for reason, names in sorted(reasons.items())]
    yield "<details><summary>Library calls and why</summary>"
    yield ""
    yield from table(["reason", "operators"], rows)
    yield "</details>"
    yield ""


def listed(entries: Mapping[str, Any]) -> Iterator[str]:
    others = {"wrong": "wrong, and not listed", "absent": "eager has no such operator on this device"}
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, row in entries.items():
        if row["verdict"] not in ("right", "stale"):
            reasons[others.get(row["verdict"]) or row["reason"]].append(name)
    if reasons:
        yield "Not right:"
        yield ""
        yield from table(
            ["reason", "entries"], [[why, ", ".join(f"`{n}`" for n in names)] for why, names in sorted(reasons.items())]
        )


def page(results: list[Mapping[str, Any]]) -> str:
    return "\n".join([HEAD, *(line for found in results for line in device_section(found))]).rstrip() + "\n"


def main() -> None:
    files = [ROOT / "benchmarks" / "results" / f"conformance_{kind}.json" for kind in ("cpu", "cuda")]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    if not found:
        raise SystemExit("There are no results yet; `make conformance` makes them.")
    temporary = PAGE.with_suffix(".tmp")
    temporary.write_text(page(found), encoding="utf-8")
    os.replace(temporary, PAGE)
    print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
