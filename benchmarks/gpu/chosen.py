"""The prior of loops beside what was chosen, by measurement, for the cells of the grid in `benchmarks/results/gpu.json`.

    TRITON_INTERPRET=1 python -m benchmarks.gpu.chosen [FILE]      needs no GPU

By function: how far its predictions are from the times of chosen candidates (of cells with one kernel), and how many of the
choices are not among those that it would have measured today.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu import loops
from benchmarks.gpu.functions import BY_NAME
from benchmarks.timing import geomean
from polytile.report import Table, show
from polytile.store import words

MEASURED = " (measured)"


@dataclass(frozen=True)
class Choice:
    """A measured choice: `far`, its prediction over that of the best predicted; `ratio`, over its time, None where that is of
    several kernels; `tried`, whether it would be measured today."""

    function: str
    far: float
    ratio: float | None
    tried: bool


def choices(rows: Sequence[Mapping[str, Any]]) -> Iterator[Choice]:
    """Of the cells whose choice was measured and is a candidate still; of several kernels, of the one with most candidates."""
    for name, dtype in dict.fromkeys((row["function"], row["dtype"]) for row in rows):
        kernel = loops.Kernel(BY_NAME[name], dtype, small=True)
        for row in rows:
            if (row["function"], row["dtype"]) == (name, dtype):
                yield from _choice(kernel, row)


def _choice(kernel: loops.Kernel, row: Mapping[str, Any]) -> Iterator[Choice]:
    sizes = {**dict.fromkeys(kernel.kernel.spec.size_names, 0), **kernel.sizes(row["shape"])}  # accesses begin at 0
    ints = tuple(sizes[name] for name in kernel.kernel.spec.size_names)
    request = kernel.kernel.request(kernel.kernel.dispatcher.key_of(*ints), ints, None)
    able = [candidate for candidate in request.candidates if candidate.origin == "triton"]
    predicted = {candidate.name: candidate.cost(sizes) * 1e6 for candidate in able}
    measured = (said.rsplit(": ", 1)[-1].removesuffix(MEASURED) for said in row["chosen"] if said.endswith(MEASURED))
    chosen = next((name for old in measured if (name := words.candidate(old)) in predicted), None)
    if chosen is not None:
        alone = len(row["chosen"]) == 1
        ratio = predicted[chosen] / row["us"]["polytile"] if alone else None
        tried = chosen in loops.tried(able, predicted)
        yield Choice(row["function"], predicted[chosen] / min(predicted.values()), ratio, tried)


def table(found: Sequence[Choice]) -> Table:
    body = []
    for name in [*dict.fromkeys(choice.function for choice in found), "all"]:
        own = [choice for choice in found if name in (choice.function, "all")]
        ratios = [choice.ratio for choice in own if choice.ratio is not None]
        spread = math.sqrt(sum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios)) if ratios else math.nan
        beyond = [choice for choice in own if not choice.tried]
        near = sum(choice.far < 1.15 for choice in beyond)
        body.append((name, len(own), f"{spread:.2f}", f"{geomean(ratios):.2f}" if ratios else "", len(beyond), near))
    columns = ["function", "choices", "root mean square of log(predicted / measured)", "its mean, as a factor",
               f"not of the {loops.SHORTLIST} tried", "of them predicted within 1.15 of the first"]  # fmt: skip
    return Table.from_rows("choices of the grid, by the prior", columns, body)


def main() -> None:
    parser = Command(__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=record.RESULTS / "gpu.json")
    show(table([*choices(record.read(parser.parsed().file)["cells"])]))


if __name__ == "__main__":
    main()
