"""Measurements to put into stores."""

from __future__ import annotations

from polytile.problem import Config, Measurement, Outcome, Problem

ENVIRONMENT = (("compiler", "g++ 12"), ("torch", "2.13.0"))


def make(
    m: int = 64, candidate: str = "looped t1", seconds: float = 1e-5, outcome: Outcome = Outcome.OK
) -> Measurement:
    problem = Problem("loop", "k0", (("M", m), ("N", 512)), ("float32", "float32"), ("threads=2",), "cpu-x")
    samples = tuple(seconds * (1 + step / 1000) for step in range(10)) if outcome is Outcome.OK else ()
    return Measurement(
        problem, candidate, Config.of({"M": 64}, threads=1), "abc", outcome, samples, 1e-7, 0.3, environment=ENVIRONMENT
    )
