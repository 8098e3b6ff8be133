"""Part `speed` of benchmarks.learned: what asking a model's table takes in C, and what training takes.

The rows to train on are made up, as only their number matters for that: problems of PER candidates with features that look like
those of products, whose times differ from predictions by a law and by noise.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

from polytile.learn import forest, installed
from polytile.learn.examples import examples
from polytile.learn.model import Trained, save
from polytile.learn.train import train
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.store.reading import Record
from polytile.tuning.run_conditions import TERM

CANDIDATES = (3, 8, 16, 28)
"""Of a loop and of a product on a CPU; of a product on a GPU whose predictions are within twice the best, and all of them."""
REPEATS, ROUNDS = 2000, 7
ROWS, PER = 100_000, 25
FEW_ROWS = 1_000
"""For training twice, to compare the bytes."""
BLOCKS = (16, 32, 64, 128, 256)


def speed() -> dict[str, Any]:
    """Microseconds of a decision by number of candidates, for each of the package's models; seconds of training."""
    asked = {model.name: _microseconds(model) for model in installed.usable(installed.SHIPPED)}
    few, backwards = _records(FEW_ROWS), _records(FEW_ROWS)[::-1]
    same = _bytes(train(examples(few).examples)) == _bytes(train(examples(backwards).examples))
    many = examples(_records(ROWS)).examples
    began = time.monotonic()
    trained = train(many)
    seconds = time.monotonic() - began
    rows = sum(len(example.offers) for example in many)
    size = trained.forest.table_bytes
    return {"asked_us": asked, "rows": rows, "seconds": round(seconds, 1), "bytes": size, "same_bytes": same}


def _bytes(model: Trained) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, model.file_name)
        save(model, path)
        return path.read_bytes()


def _microseconds(model: Trained) -> dict[str, float]:
    """Of one call of the compiled function, without what Python needs to make it, at random rows within the model's ranges."""
    forest.prepare().result()
    walk, draw, width = forest._compiled(), random.Random(0), len(model.names)
    if walk is None:
        return {}
    nodes, roots = model.forest._packed
    found = {}
    for count in CANDIDATES:
        values = array("d", [math.exp(draw.uniform(-3, 9)) for _ in range(count * width)])
        out = array("d", bytes(8 * count * len(roots)))
        given = nodes, roots.buffer_info()[0], len(roots), values.buffer_info()[0], count, width, out.buffer_info()[0]
        nothing = (*given[:2], 0, *given[3:])
        best = min(_timed(walk, given) for _ in range(ROUNDS)) - min(_timed(walk, nothing) for _ in range(ROUNDS))
        found[str(count)] = round(best * 1e6, 2)
    return found


def _timed(walk: forest.Walk, given: tuple[Any, ...]) -> float:
    began = time.perf_counter()
    for _ in range(REPEATS):
        walk(*given)
    return (time.perf_counter() - began) / REPEATS


def _records(rows: int) -> list[Record]:
    draw = random.Random(1)
    return [each for number in range(rows // PER) for each in _problem(number, draw)]


def _problem(number: int, draw: random.Random) -> list[Record]:
    m, n, k = (round(math.exp(draw.uniform(3, 9))) for _ in range(3))
    problem = Problem("mm", f"kernel {number % 20}", (("M", m), ("N", n), ("K", k)), ("float32",) * 3, (), "cpu-made-up")
    found = []
    for rows in BLOCKS:
        for columns in BLOCKS:
            used = m * n / (math.ceil(m / rows) * rows * math.ceil(n / columns) * columns)
            predicted = m * n * k / 1e11 / used + 1e-6
            terms = {f"part{part}_s": predicted * draw.random() for part in range(20)}
            terms |= {"work.M": m, "work.N": n, "work.K": k, "used": used, "blocks": m * n / rows / columns}
            seconds = predicted * (1 + 8 / rows + 4 / columns) * math.exp(draw.gauss(0, 0.03))
            state = tuple(sorted((TERM + name, float(value)) for name, value in terms.items()))
            config = Config.of(variant="tile", m=rows, n=columns)
            found.append(Record(f"{number}-{rows}-{columns}", float(number), Measurement(
                problem, f"tile {rows}x{columns}", config, "made up", Outcome.OK, (seconds,) * 3, origin="cpp",
                predicted=predicted, state=state, machine=(("isa", "avx512"), ("kind", "cpu"), ("threads", "2")),
            )))  # fmt: skip
    return found
