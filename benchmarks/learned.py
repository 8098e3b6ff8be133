"""`python -m benchmarks.learned [PART ...] [--measured FILE ...] [--again FILE] [--json]`: how good learned choice is.

    products  products on an H100 and an H200, and loops on an H100, as recorded in results/, held out by their
              sizes, five models each                                                                                L1, L2
    devices   models of one of these GPUs on the other one's products                                                L3
    cpu       the package's models for this kind of processor, on the part of --measured that they took no part in   L2
    calls     a new process with these models, and one without, at sizes that are not in their data                  L4
    speed     asking a table in C, and training                                                                      L5

Without a PART: products and devices, which need nothing but scikit-learn. `cpu` needs what `polytile learn collect` measured
(docs/learning.md has the commands), and a second measurement of the same problems in --again: choices are then judged by times
that took no part in them, as is the choice by the first measurement itself. `calls` and `speed` want a machine that nothing else
uses; the others time nothing. `--json` keeps what was found in results/learned.json, beside the parts that were not asked for.
`products` trains for some minutes and keeps each table as soon as it is found; `--table TEXT` asks only for those with TEXT in
their names. `--export FILE` writes the products on an H100 as `polytile learn train` reads them; `--show` prints what is kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import learned_calls, learned_speed, record
from benchmarks.command import Command
from benchmarks.learned_bars import bars
from benchmarks.recorded import loops
from benchmarks.recorded_products import h100, h200
from polytile.learn import installed
from polytile.learn.examples import TEST, Example, examples
from polytile.learn.model import Settings, Trained
from polytile.learn.score import FAR, cases, geomean, tried
from polytile.learn.train import TREES, grown, held_out
from polytile.report import show
from polytile.store.jsonl import header, line
from polytile.store.place import place_of
from polytile.store.reading import Record
from polytile.store.transfer import held

BESIDE = "triton", "library", "cublaslt"
"""Sources of which both GPUs have products."""

FIRST_OF_GRID = Settings(14, 3, "squared_error", TREES)
"""For models of one device that are asked about another: nothing there chooses between settings."""


TABLES: dict[str, Callable[[], Iterable[Record]]] = {
    "H100, every generated config": lambda: h100("candidates"),
    "H100, a shortlist beside the library's": lambda: h100("pairs"),
    "H200, generated, the library's and CUTLASS's": lambda: h200(*BESIDE, "cutlass"),
    "H100, loops, every schedule": loops,
}


def products(asked: str = "") -> Iterator[dict[str, Any]]:
    """Each table with `asked` in its name by five models, each judged on the fifth that it was not trained on. One table at a
    time."""
    for name, records in TABLES.items():
        if asked in name:
            yield {name: _held_out(_examples(records()))}


def _held_out(chosen: Sequence[Example]) -> dict[str, Any]:
    return dataclasses.asdict(tried("held out", [case for model, part in held_out(chosen) for case in cases(model, part)]))


def devices() -> dict[str, Any]:
    """Models of one GPU's products of bfloat16, judged on the other's: what both have."""
    here = {"generated": h100("candidates"), "with the library's": h100("pairs")}
    there = {"generated": h200("triton"), "with the library's": h200(*BESIDE)}
    found = {}
    for kind in here:
        one, other = _bfloat16(here[kind]), _bfloat16(there[kind])
        for name, known, asked in (("H100 → H200", one, other), ("H200 → H100", other, one)):
            judged = cases(grown(known, FIRST_OF_GRID), asked)
            spoken = [case for case in judged if case.risk < math.inf]
            found[f"{name}, {kind}"] = dataclasses.asdict(tried("other device", judged))
            found[f"{name}, {kind}, within its range"] = dataclasses.asdict(tried("within its range", spoken))
    return found


def _bfloat16(records: Iterable[Record]) -> list[Example]:
    return [example for example in _examples(records) if example.problem.dtypes[0] == "bfloat16"]


def _examples(records: Iterable[Record]) -> list[Example]:
    return list(examples(records).examples)


def cpu(measured: Sequence[str], again: str) -> dict[str, Any]:
    """The package's models on the part of the problems that they took no part in."""
    found = {}
    known = examples(each for name in (*measured, again) for each in held(place_of(name)).records).families()
    first = examples(each for name in measured for each in held(place_of(name)).records).families()
    second = examples(held(place_of(again)).records).families()
    for model in installed.usable(installed.SHIPPED):
        of = model.family, model.architecture
        asked = [example for example in known[of] if example.fold == TEST]
        found[f"{model.family} on {model.architecture}"] = {
            **dataclasses.asdict(tried("held out", cases(model, asked))),
            "model": model.name,
            "again": _judged_again(model, asked, first[of], second[of]),
        }
    return found


def _judged_again(
    model: Trained, asked: Sequence[Example], first: Sequence[Example], second: Sequence[Example]
) -> dict[str, Any]:
    """What choices take at a second measurement: the model's where it is sure, and, of the same problems, those by the first
    measurement of every candidate."""
    once, twice = ({example.problem.key: example for example in each} for each in (first, second))
    by_model, by_measuring = [], []
    for example in asked:
        said = model.of_rows(example.problem, *example.ranked)
        earlier, later = once.get(example.problem.key), twice.get(example.problem.key)
        if said is None or not said.sure or earlier is None or later is None:
            continue
        regrets = {offer.name: later.regret(place) for place, offer in enumerate(later.offers)}
        measured = earlier.offers[earlier.seconds.index(earlier.best)].name
        if said.ranking[0] in regrets and measured in regrets:
            by_model.append(regrets[said.ranking[0]])
            by_measuring.append(regrets[measured])
    return {"model": _summary(by_model), "measured": _summary(by_measuring)}


def _summary(regrets: Sequence[float]) -> dict[str, Any]:
    far = sum(regret > FAR for regret in regrets)
    return {"total": len(regrets), "geomean": geomean(regrets), "far": far, "worst": max(regrets, default=1.0)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Command(__doc__, "learned", lambda found: show(bars(found)), json=True)
    parser.add_argument("parts", nargs="*", metavar="PART", help="products, devices, cpu, calls, speed")
    parser.add_argument("--measured", nargs="+", default=[], help="what the package's models were made of")
    parser.add_argument("--again", default="", help="a second measurement of the same problems")
    parser.add_argument("--table", default="", metavar="TEXT", help="products: only tables with this in their names")
    parser.add_argument("--export", type=Path, help="write the measurements as JSON lines and stop")
    given = parser.parsed(arguments)
    if given.export:
        given.export.write_text(header() + "".join(map(line, h100("candidates"))))
        return
    parts: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "products": lambda: products(given.table), "devices": lambda: [devices()],
        "cpu": lambda: [cpu(given.measured, given.again)], "calls": lambda: [learned_calls.calls()],
        "speed": lambda: [learned_speed.speed()],
    }  # fmt: skip
    if unknown := set(given.parts) - parts.keys():
        parser.error(f"there is no part {unknown.pop()!r}; choose from {', '.join(parts)}.")
    results: dict[str, Any] = {}
    for part in given.parts or ("products", "devices"):
        for found in parts[part]():
            results[part] = results.get(part, {}) | found
            if given.json:
                record.add("learned", part, found)
    show(bars(results))


if __name__ == "__main__":
    main()
