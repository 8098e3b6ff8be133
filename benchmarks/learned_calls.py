"""Part `calls` of benchmarks.learned: first calls of a new process with the package's models, and of one without.

Each process starts with an empty store and calls every operation of `polytile learn collect` that the models are of, at sizes
that are in no data (SEED). Compiled kernels are shared, so that no compiler runs while candidates are timed after the first
process. A last process measures every candidate at the same sizes; what was chosen is judged by that.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import polytile
from benchmarks.contestants import alone, own_caches
from polytile.cli.learn_collect import Wanted, collect
from polytile.dispatch.registry import alive
from polytile.learn.examples import Example, examples
from polytile.learn.problems import LIMITS, OPERATIONS
from polytile.learn.score import FAR, geomean, quantile
from polytile.store.place import place_of
from polytile.store.transfer import held
from polytile.tuning.headroom import for_measuring

SEED, COUNT = 1000, 6
NAMES = tuple(name for name, operation in OPERATIONS.items() if operation.family in ("mm", "loop") and name != "mixed_mm")


def calls() -> dict[str, Any]:
    """How many candidates each process timed, and how good its choices are, by family."""
    with own_caches() as caches, tempfile.TemporaryDirectory() as folder:
        found = {way: _run(way, folder, caches) for way in ("learned", "without", "all")}
        truth = {example.problem.key: example for example in examples(held(place_of(f"{folder}/all")).records).examples}
        return {way: _judged(found[way], truth) for way in ("learned", "without")}


def _run(way: str, folder: str, caches: Mapping[str, str]) -> dict[str, Any]:
    settings = {"LEARNED": str(int(way == "learned")), "STORE": f"{folder}/{way}.store", "STALL": "tune", "ISOLATION": "never"}
    variables = {**caches, **{f"POLYTILE_{name}": value for name, value in settings.items()}}
    return alone("benchmarks.learned_calls:decided", {"every": f"{folder}/all" if way == "all" else ""}, variables=variables)


def _judged(found: dict[str, list[dict[str, Any]]], truth: dict[str, Example]) -> dict[str, Any]:
    made = {}
    for family in ("loop", "mm"):
        rows = [row for row in found["calls"] if row["family"] == family]
        regrets = [example.regret(names.index(row["candidate"])) for row in rows
                   if (example := truth.get(row["problem"])) and row["candidate"] in (names := [o.name for o in example.offers])]
        made[family] = {
            "regimes": len(rows), "links": dict(Counter(row["link"] for row in rows)), "timed": sum(row["timed"] for row in rows),
            "judged": len(regrets), "geomean": geomean(regrets), "p95": quantile(regrets, 0.95),
            "far": sum(regret > FAR for regret in regrets), "worst": max(regrets),
        }  # fmt: skip
    return made


def decided(given: Mapping[str, str]) -> dict[str, Any]:
    """What calls at the sizes of SEED decide, and how many candidates are timed for it; or, with a store {"every"}, nothing, and
    every candidate is measured into it."""
    if given["every"]:
        collect(Wanted(NAMES, ["float32"], "cpu", COUNT, SEED), Path(given["every"]), 0.0)
        return {}
    rows: list[dict[str, Any]] = []
    with torch.no_grad(), for_measuring(), torch._dynamo.config.patch(force_parameter_static_shapes=False):
        functions = {name: polytile.compile(OPERATIONS[name].run) for name in NAMES}
        for number in range(COUNT):
            for name in NAMES:
                operation = OPERATIONS[name]
                sizes = operation.sizes(number, SEED, LIMITS[operation.family, "cpu"])
                for kernel in alive():
                    kernel.forget()
                before = polytile.counters["candidates_benchmarked"]
                functions[name](*operation.make(sizes, torch.float32, torch.device("cpu")))
                timed = int(polytile.counters["candidates_benchmarked"] - before)
                for decision in (each for kernel in alive() for each in kernel.decisions):
                    rows.append({
                        "problem": decision.problem.key, "family": decision.problem.family, "candidate": decision.candidate,
                        "link": decision.link, "provenance": decision.provenance, "timed": timed,
                    })  # fmt: skip
                    timed = 0
    return {"calls": rows}
