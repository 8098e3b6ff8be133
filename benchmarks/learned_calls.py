"""Part `calls` of benchmarks.learned: first calls of a new process with the package's models, and of one without.

Each process starts with an empty store and calls every operation of `polytile learn collect` that the models are of, at sizes
that are in no data (SEED). Compiled kernels are shared, so that no compiler runs while candidates are timed after the first
process. A last process measures every candidate at the same sizes; what was chosen is judged by that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import polytile
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
    with tempfile.TemporaryDirectory() as folder:
        for way in ("learned", "without", "all"):
            _run(way, Path(folder))
        truth = {example.problem.key: example for example in examples(held(place_of(f"{folder}/all")).records).found}
        return {way: _judged(json.loads(Path(folder, f"{way}.json").read_text()), truth) for way in ("learned", "without")}


def _run(way: str, folder: Path) -> None:
    learned, store = str(int(way == "learned")), str(folder / f"{way}.store")
    settings = {"LEARNED": learned, "STORE": store, "STALL": "tune", "ISOLATION": "never"}
    env = {**os.environ, **{f"POLYTILE_{name}": value for name, value in settings.items()}}
    subprocess.run([sys.executable, "-m", "benchmarks.learned_calls", way, str(folder)], check=True, env=env)


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


def _decided() -> list[dict[str, Any]]:
    """What calls at the sizes of SEED decide, and how many candidates are timed for it."""
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
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=("learned", "without", "all"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.way == "all":
        collect(Wanted(NAMES, ["float32"], "cpu", COUNT, SEED), given.folder / "all", 0.0)
        return
    found = {"calls": _decided()}
    (given.folder / f"{given.way}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
