"""What is worth keeping about a measurement besides its result: where the candidate came from, what it needs of the device,
and how the machine was at that moment. None of it is part of a key."""

from __future__ import annotations

import dataclasses
import os

from polytile.kernels.candidate import Candidate
from polytile.problem import Measurement, Scalar
from polytile.runtime import cpu, device


def completed(measurement: Measurement, candidate: Candidate, predicted: float) -> Measurement:
    """The measurement with its circumstances; `predicted` is the candidate's own expectation in seconds.

    A candidate whose compiler reports what a kernel takes has an attribute `resources`. What the measurement says already
    stays.
    """
    return dataclasses.replace(
        measurement,
        origin=measurement.origin or candidate.origin,
        predicted=predicted,
        resources=getattr(candidate, "resources", None) or measurement.resources,
        state=tuple(sorted({**state(), **dict(measurement.state)}.items())),
        machine=measurement.machine or device.described(measurement.problem.device),
    )


def state() -> dict[str, Scalar]:
    """Clock of the processor and how many processes wanted to run ("load", over the last minute)."""
    try:
        load = {"load": round(os.getloadavg()[0], 2)}
    except OSError:
        load = {}
    return {**cpu.clocks(), **load}


__all__ = ["completed", "state"]
