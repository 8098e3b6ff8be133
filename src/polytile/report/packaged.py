"""A report on a package, or on the changes between two: its manifest as tables (docs/report.md)."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polytile.report.tables import Column, Table, count

UNBOUNDED = 1 << 62
"""Bounds of a size from here on count as infinite: torch's largest size, with a margin."""

MEASURED = ("exact", "nearby", "measured")
"""Links of the selector whose choices rest on measurements."""

MEANINGS = (
    ("form", "A generated kernel with its config. A package holds no other kernels."),
    ("sizes", "The range of sizes that share a choice: M=33..45 are all from 33 to 45; %16 are those that 16 divides."),
    ("grounds", "Why that form runs there: measured at these sizes (exact) or near them (nearby), or predicted (prior)."),
    ("memory", "What a call allocates, and inputs that it does not need to the end. What only kernels see lies in one arena, "
     "unless that would take more than allocating each by itself; results never do."),
    ("otherwise", "Sizes that no row names run a form that is right at all sizes."),
)
"""Explanations of the terms."""


@dataclass(frozen=True)
class Package:
    """A package: the name of its file, and its manifest."""

    name: str
    manifest: Mapping[str, Any]

    def choices(self) -> dict[tuple[str, str], tuple[str, str]]:
        """(form, grounds) by kernel and range of sizes, with sizes in order."""
        rows = [(kernel["name"], *decision) for kernel in self.manifest["kernels"] for decision in kernel["decisions"]]
        return {(kernel, sizes): (form, grounds) for kernel, sizes, form, grounds in sorted(rows, key=_numbered)}


@dataclass(frozen=True)
class PackageReport:
    """One package, or `package` after `before`. `command` is the command that made it."""

    package: Package
    before: Package | None
    command: str

    @property
    def title(self) -> str:
        before = f"{self.before.name} → " if self.before is not None else ""
        return f"Report on the package {before}{self.package.name}"


def tables(report: PackageReport) -> Iterator[tuple[str, Table]]:
    """Every table, with the name of its file."""
    yield "summary", summary(report)
    if report.before is not None:
        yield "changes", changes(report.before, report.package)
    yield "kernels", kernels(report.package)
    yield "choices", choices(report.package)
    yield "memory", memory(report.package)
    yield "memories", memories(report.package)
    yield "inputs", inputs(report.package)
    yield "files", files(report.package)
    yield "meanings", Table.from_rows("What the numbers mean", ["word", "meaning"], MEANINGS)


def summary(report: PackageReport) -> Table:
    """The first table of a report on a package, with a column for each package."""
    both = [package for package in (report.before, report.package) if package is not None]
    described = [dict(_facts(package)) for package in both]
    names = dict.fromkeys(name for each in described for name in each)
    columns = ["before", "after"] if len(both) > 1 else ["found"]
    rows = [(name, *(each.get(name, "–") for each in described)) for name in names]
    return Table.from_rows(report.title, ["subject", *columns], [*rows, ("made by", *[report.command] * len(both))])


def _facts(package: Package) -> Iterator[tuple[str, str]]:
    manifest = package.manifest
    links = collections.Counter(_link(why) for _, why in package.choices().values())
    total = sum(file["bytes"] for file in manifest["files"].values())
    yield "versions", f"polytile {manifest['polytile']}, torch {manifest['torch']}, {manifest['compiler']}"
    yield "runs on", _place(manifest)
    yield "sizes that vary", ", ".join(_bounds(name, *bounds) for name, bounds in manifest["sizes"].items()) or "none"
    yield "kernels", count(len(manifest["kernels"]))
    yield "choices", f"{count(links.total())}: " + ", ".join(f"{count(number)} {link}" for link, number in links.most_common())
    yield "files", f"{len(manifest['files'])}, {total / 1e6:.2f} MB" + (", weights apart" if manifest["weights_apart"] else "")


def _place(manifest: Mapping[str, Any]) -> str:
    """What a package runs on."""
    if architectures := manifest.get("architectures"):
        return f"NVIDIA GPUs of architecture {', '.join(map(str, architectures))}, {manifest['machine']}"
    return f"{manifest['device']}, {manifest['machine']} with {' '.join(manifest['features'])}"


def kernels(package: Package) -> Table:
    """Each kernel: its operators, its forms, and how many of its choices rest on measurements."""
    rows = []
    for kernel in package.manifest["kernels"]:
        links = [_link(grounds) for _, _, grounds in kernel["decisions"]]
        measured = sum(link in MEASURED for link in links)
        rows.append((kernel["name"], " ".join(kernel["operators"]), "; ".join(kernel["forms"]), len(links), measured))
    numbers = [Column("ranges of sizes", count), Column("measured", count)]
    return Table.from_rows("Kernels", ["kernel", "operators", "forms", *numbers], rows)


def choices(package: Package) -> Table:
    """What runs each kernel at each range of sizes, and why."""
    rows = [(kernel, sizes, form, grounds) for (kernel, sizes), (form, grounds) in package.choices().items()]
    return Table.from_rows("Choices", ["kernel", "sizes", "form", "grounds"], rows)


def memory(package: Package) -> Table:
    """The arena at each of the sizes that the package was made for, and what its memories would take side by side."""
    rows = []
    for planned in _memory_at(package):
        inside = [size for size, offset in zip(planned["bytes"], planned["offsets"], strict=True) if offset is not None]
        rows.append((_sizes(planned), planned["arena"], len(inside), sum(inside), len(planned["bytes"]) - len(inside),
                     sum(planned["bytes"]) - sum(inside)))  # fmt: skip
    numbers = ["arena, bytes", "memories in it", "bytes side by side", "others", "bytes of others"]
    return Table.from_rows("Memory of a call", ["sizes", *(Column(name, count) for name in numbers)], rows)


def memories(package: Package) -> Table:
    """Each memory at these sizes: where it lies, and the calls of kernels between which it is needed."""
    rows = []
    for planned in _memory_at(package):
        calls, held = package.manifest["memory"]["calls"], package.manifest["memory"]["memories"]
        for (name, first, last), size, offset in zip(held, planned["bytes"], planned["offsets"], strict=True):
            until = f"{last}: {calls[last - 1]}" if 0 < last <= len(calls) else "the end"
            since = f"{first + 1}: {calls[first]}" if first < len(calls) else "the end"
            rows.append((_sizes(planned), name, size, offset, since, until))
    columns: list[Column | str] = ["sizes", "memory", Column("bytes", count), Column("at byte", count), "from call", "to call"]
    return Table.from_rows("Memories", columns, rows)


def _memory_at(package: Package) -> Sequence[Mapping[str, Any]]:
    """What the manifest says of memory; packages of earlier versions say nothing."""
    planned: Sequence[Mapping[str, Any]] = (package.manifest.get("memory") or {"at": ()})["at"]
    return planned


def _sizes(found: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in found["sizes"].items()) or "all"


def inputs(package: Package) -> Table:
    """The inputs of a packaged program, as a table."""
    rows = [
        (given["name"], given.get("dtype", f"the constant {given.get('constant')}"), " × ".join(given.get("shape", ())))
        for given in package.manifest["inputs"]
    ]
    return Table.from_rows("Inputs", ["input", "type", "shape"], rows)


def files(package: Package) -> Table:
    """The files of a package with their sizes, as a table."""
    rows = [(name, file["bytes"], file["sha256"][:16]) for name, file in package.manifest["files"].items()]
    return Table.from_rows("Files", ["file", Column("bytes", count), "SHA-256 begins with"], rows)


def changes(before: Package, after: Package) -> Table:
    """The ranges of sizes at which another form runs, or the same one on other grounds, and those that only one package has."""
    old, new = before.choices(), after.choices()
    rows: list[Sequence[Any]] = []
    for key in dict.fromkeys((*old, *new)):
        one, other = old.get(key), new.get(key)
        if one != other:
            verdict = "gone" if other is None else "new" if one is None else "form" if one[0] != other[0] else "grounds"
            rows.append((*key, verdict, *(one or (None, None)), *(other or (None, None))))
    order = ("form", "new", "gone", "grounds")
    rows.sort(key=lambda row: order.index(row[2]))
    columns = ["kernel", "sizes", "what changed", "form before", "grounds before", "form after", "grounds after"]
    return Table.from_rows("What changed", columns, rows)


def strips(package: Package) -> list[Any]:
    """For each kernel with choices, its name, its forms (most frequent first), and for each range of sizes in order: its text,
    the index of its form, and whether it was measured."""
    chosen = package.choices()
    made = []
    for name in dict.fromkeys(kernel for kernel, _ in chosen):
        own = [(sizes, form, grounds) for (kernel, sizes), (form, grounds) in chosen.items() if kernel == name]
        forms = [form for form, _ in collections.Counter(form for _, form, _ in own).most_common()]
        made.append([name, forms, [[sizes, forms.index(form), _link(why) in MEASURED] for sizes, form, why in own]])
    return made


def _link(grounds: str) -> str:
    """The link of the selector that decided: the word before the colon."""
    return grounds.partition(":")[0]


def _bounds(name: str, low: int, high: int | None) -> str:
    return f"{name} ≥ {low}" if high is None or high >= UNBOUNDED else f"{name} = {low}..{high}"


def _numbered(row: Sequence[str]) -> tuple[Sequence[Any], ...]:
    """A sort key that orders numbers in texts by value: M=9 before M=12..16."""
    return tuple([int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)] for text in row)
