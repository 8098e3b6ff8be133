"""What is worth keeping about a measurement besides its result: where the candidate came from, what it needs of the device,
and how the machine was at that moment. None of it is part of a key."""

from __future__ import annotations

import dataclasses
import os

import torch

from polytile.candidates.candidate import Candidate
from polytile.problem import Measurement, Scalar
from polytile.runtime import cpu, device
from polytile.runtime.cuda import clocks

State = tuple[tuple[str, Scalar], ...]


def completed(measurement: Measurement, candidate: Candidate, predicted: float, moment: State) -> Measurement:
    """The measurement with its circumstances; `predicted` is the candidate's own expectation in seconds, `moment` what
    `state` said.

    What the measurement says already stays.
    """
    own = candidate.describe(measurement.problem.size)
    return dataclasses.replace(
        measurement,
        origin=measurement.origin or candidate.origin,
        predicted=predicted,
        resources=candidate.resources or measurement.resources,
        state=tuple(sorted({**dict(moment), **own, **dict(measurement.state)}.items())),
        machine=measurement.machine or device.described(measurement.problem.device),
    )


def state(target: torch.device) -> State:
    """Clock of the processor (of a GPU its clocks, temperature and power) and how many processes wanted to run ("load", over
    the last minute)."""
    try:
        load: dict[str, Scalar] = {"load": round(os.getloadavg()[0], 2)}
    except OSError:
        load = {}
    now = clocks.clocks(target.index or 0) if target.type == "cuda" else cpu.clocks()
    return tuple(sorted({**now, **load}.items()))


__all__ = ["State", "completed", "state"]
