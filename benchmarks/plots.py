"""Draws the heat maps of the documents from benchmarks/results: `python -m benchmarks.plots`.

A cell's colour is the logarithm of a ratio: blue where polytile, or the hint, is faster, red where it is slower, white at 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.command import Command
from benchmarks.record import RESULTS

IMAGES = RESULTS.parent.parent / "docs" / "images"
SATURATED = 8.0  # the ratio from which on a colour gets no stronger


@dataclass(frozen=True)
class HeatMap:
    """Ratios by row and column, above 1 where what is judged is faster."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    ratios: tuple[tuple[float, ...], ...]

    def draw(self, target: Path) -> Path:
        """Writes an SVG to `target`, the same bytes for the same numbers, and returns it."""
        import matplotlib

        matplotlib.use("Agg")
        matplotlib.rcParams["svg.hashsalt"] = self.title
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(2.4 + 0.75 * len(self.columns), 1.0 + 0.34 * len(self.rows)))
        limit = math.log(SATURATED)
        logarithms = [[max(-limit, min(limit, math.log(r))) for r in row] for row in self.ratios]
        axes.imshow(logarithms, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
        axes.set_xticks(range(len(self.columns)), self.columns)
        axes.set_yticks(range(len(self.rows)), self.rows)
        axes.set_title(self.title, fontsize=10)
        for y, row in enumerate(self.ratios):
            for x, value in enumerate(row):
                dark = abs(logarithms[y][x]) > 0.6 * limit
                axes.text(x, y, _number(value), ha="center", va="center", fontsize=8, color="white" if dark else "black")
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
        return target


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def loops(results: Mapping[str, Any], peer: str) -> HeatMap:
    """Time of `peer` over polytile's for each function and shape, without Dynamo's share."""
    suite = results["suite"]
    shapes = tuple(next(iter(suite.values())))
    ratios = tuple(
        tuple(_ratio(cells[shape]["without_dynamo"]["timings"], peer, "polytile") for shape in shapes)
        for cells in suite.values()
    )
    name = {"eager": "eager", "inductor": "the peer's dynamic compile"}[peer]
    return HeatMap(f"Time of {name} over polytile's", tuple(suite), tuple(s.replace("x", "×") for s in shapes), ratios)


def hints(results: Mapping[str, Any]) -> HeatMap:
    """Time of the tuned choice over that of kernels made for each hint, for each size met at run time."""
    sizes = results["sizes"]
    names = tuple(name for name in next(iter(sizes.values()))["timings"] if name.startswith("hint "))
    ratios = tuple(tuple(_ratio(sizes[size]["timings"], "pick", name) for size in sizes) for name in names)
    return HeatMap("x @ y: time of the pick over that of kernels made for one hint", names, tuple(sizes), ratios)


def _ratio(timings: Mapping[str, Mapping[str, float]], base: str, name: str) -> float:
    return timings[base]["seconds"] / timings[name]["seconds"]


PLOTS = {
    "loops-eager": ("loops", lambda results: loops(results, "eager")),
    "loops-peer": ("loops", lambda results: loops(results, "inductor")),
    "hints": ("demo_hints", hints),
}
"""Image by name: the suite whose results it shows, and the map made of them."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Command(__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PLOTS)}; all whose suite has results unless given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--images", type=Path, default=IMAGES)
    given = parser.parsed(arguments)
    for name in given.names or PLOTS:
        if name not in PLOTS:
            parser.error(f"there is no plot {name!r}; there are {', '.join(PLOTS)}")
        suite, make = PLOTS[name]
        file = given.results / f"{suite}.json"
        if file.exists():
            print(make(record.read(file)).draw(given.images / f"{name}.svg"))
        else:
            print(f"{name}: no {file}; `python -m benchmarks.{suite.split('_')[0]} --json` writes it")


if __name__ == "__main__":
    main()
