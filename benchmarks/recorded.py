"""Matrices of times that were recorded on an H100, of which nearly every candidate was measured, as stores hold measurements:
254 products (part `candidates` of benchmarks.gpu.gemm) and 279 fused loops (benchmarks.gpu.loops).

`Noisy` stands in for the device: races run on it as they do on a GPU, their clock included, but each time that it gives has the
noise that was recorded on one.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import record
from benchmarks.gpu.functions import BY_NAME
from benchmarks.gpu.loops import Kernel
from benchmarks.recorded_products import h100, machine_of
from polytile.candidates.entries import PythonEntry
from polytile.problem import Measurement, Outcome, Problem
from polytile.runtime.cuda.device import named
from polytile.store import words
from polytile.store.reading import Record
from polytile.tuning import measure, racing
from polytile.tuning.decide import Entrant
from polytile.tuning.limits import GPU_THOROUGH, Limits
from polytile.tuning.measure import Contender
from polytile.tuning.replay import Device, Matrix, Recorded, matrices
from polytile.tuning.run_conditions import TERM
from polytile.tuning.task import Attempt, Task

ELEMENTS = {"bf16": "bfloat16", "fp32": "float32"}


def products() -> list[Record]:
    """A measurement for each config of each product."""
    return h100("candidates")


def loops() -> list[Record]:
    """A measurement for each schedule of each loop, with today's predictions."""
    found = record.read("gpu_loops")
    machine = machine_of(named(found["device"]))
    made: list[Record] = []
    for function, dtype in dict.fromkeys((cell["function"], cell["dtype"]) for cell in found["cells"]):
        kernel = Kernel(BY_NAME[function], dtype, small=True)
        for number, cell in enumerate(found["cells"]):
            if (cell["function"], cell["dtype"]) == (function, dtype):
                made += _of_cell(kernel, cell, number, machine)
    return made


def _of_cell(kernel: Kernel, cell: dict[str, Any], number: int, machine: tuple[tuple[str, str], ...]) -> Iterator[Record]:
    sizes, dtype = kernel.sizes(cell["shape"]), ELEMENTS[cell["dtype"]]
    rows, columns = cell["shape"]
    name = f"{cell['function']} {cell['dtype']}"
    problem = Problem("loop", name, (("rows", rows), ("columns", columns)), (dtype,), (), "cuda-recorded-H100")
    us = {words.candidate(name): value for name, value in cell["us"].items()}
    for candidate in kernel.kernel.candidates:
        if candidate.name in us:
            terms = tuple(sorted((TERM + name, float(f"{value:.4g}")) for name, value in candidate.terms(sizes).items()))
            yield Record(f"{number}-{candidate.name}", float(number), Measurement(
                problem, candidate.name, candidate.config, "recorded", Outcome.OK, (us[candidate.name] * 1e-6,) * 5,
                origin=candidate.origin, predicted=candidate.cost(sizes), state=terms, machine=machine,
            ))  # fmt: skip


SUITES = {"products": products, "loops": loops}


def of_one_problem(records: list[Record]) -> list[Matrix]:
    """A matrix for each problem that two candidates could run, so that nothing learned at one size serves another."""
    made = [
        replace(matrix, candidates={problem: candidates})
        for matrix in matrices(records)
        for problem, candidates in matrix.candidates.items()
    ]
    return [matrix for matrix in made if matrix.size > 1]


@dataclass(frozen=True)
class Noise:
    """How times vary on an H100, relatively, as docs/tuning-experiments.md has it ("Do processes from scratch choose alike?").

    process     from one process to another, as a standard deviation
    recording   from one recording of a burst to another
    replay      from one replay of a recording to another: what clocks tick
    odd         how often a candidate is slower in one process than in the others, in each recording alike: that befell the
                winner in 15 of 103 × 20 races
    by          by how much it is slower then: any number between

    `process` and `recording` are such that what races find varies from process to process by a median deviation of 0.27 % on the
    products; recorded were 0.28 %.
    """

    process: float = 0.0036
    recording: float = 0.004
    replay: float = 0.001
    odd: float = 15 / (103 * 20)
    by: tuple[float, float] = (0.03, 0.10)


REPLAYS = 3
"""Bursts of one recording (runtime/cuda/timing.py)."""


@dataclass
class Noisy(Device):
    """The device in process number `seed`. `seconds` is how long it has been kept busy."""

    seed: int = 0
    noise: Noise = field(default_factory=Noise)
    limits: Limits = GPU_THOROUGH
    seconds: float = 0.0
    measured: list[Measurement] = field(default_factory=list)
    """What its races have found."""

    def tune(self, task: Task) -> list[Attempt]:
        """A Tuner: the candidates race, the best predicted first, and each is measured as the race finds it."""
        where = task.problem.family, task.target.type
        entrants = {c.name: Entrant.from_candidate(c, *where, task.problem.size) for c in task.candidates}
        order = sorted(task.candidates, key=lambda candidate: entrants[candidate.name].order)
        contenders = [Contender(c.name, PythonEntry(_nothing), (), entrant=entrants[c.name]) for c in order]
        with self._timing(task.problem):
            timings = dict(zip((c.name for c in order), racing.race(contenders, self.limits), strict=True))
        attempts = []
        for candidate in task.candidates:
            tried, timing = super().attempt(task.problem, candidate), timings[candidate.name]
            assert tried.measurement is not None
            self.measured.append(replace(tried.measurement, samples=timing.samples))
            attempts.append(Attempt(candidate, self.measured[-1], timing.seconds, timing.noise))
        return attempts

    @contextmanager
    def _timing(self, problem: Problem) -> Iterator[None]:
        """Within the block a race gets its times, and its clock, from here."""
        own = {c.name: _Samples(c, self.noise, self._drawn(problem, c.name)) for c in self.matrix.candidates[problem]}

        def time_burst(contender: Contender, repeats: int) -> float:
            seconds = repeats * own[contender.name].next()
            self.bursts += 1
            self.seconds += seconds
            return seconds

        kept = measure.time_burst, racing.clock, racing.pause
        measure.time_burst, racing.clock, racing.pause = time_burst, lambda: self.seconds, lambda seconds: None
        try:
            yield
        finally:
            measure.time_burst, racing.clock, racing.pause = kept

    def _drawn(self, problem: Problem, name: str) -> random.Random:
        """Another one for each race of a candidate in each process."""
        again = self.tried.get((problem, name), 0)
        return random.Random(zlib.crc32(f"{self.seed} {again} {problem.key} {name}".encode()))


class _Samples:
    """The seconds of a candidate's bursts in one race."""

    def __init__(self, candidate: Recorded, noise: Noise, drawn: random.Random) -> None:
        self.noise, self.drawn = noise, drawn
        odd = drawn.uniform(*noise.by) if drawn.random() < noise.odd else 0.0
        self.seconds = candidate.score.seconds * (1 + odd) * (1 + drawn.gauss(0, noise.process))
        self.recording, self.replays = 0.0, 0

    def next(self) -> float:
        if self.replays % REPLAYS == 0:
            self.recording = self.seconds * (1 + self.drawn.gauss(0, self.noise.recording))
        self.replays += 1
        return self.recording * (1 + abs(self.drawn.gauss(0, self.noise.replay)))


def _nothing(*_: object) -> None:
    """What runs in a contender's place."""
