"""The conditions of a measurement: where its candidate came from, what the kernel takes of the device, and the state of the
machine at that moment. They are kept with the result and are no part of its key."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from types import MappingProxyType

import torch

from polytile.candidates.candidate import Candidate
from polytile.problem import Measurement, Scalar
from polytile.runtime import cpu, device
from polytile.runtime.cuda import clocks
from polytile.store.records import TERM

State = tuple[tuple[str, Scalar], ...]

def with_run_conditions(
    measurement: Measurement,
    candidate: Candidate,
    predicted: float,
    moment: State,
    terms: Mapping[str, float] = MappingProxyType({}),
) -> Measurement:
    """The measurement with its conditions; `predicted` is the candidate's own expectation in seconds, `terms` what that is made
    of, `moment` what `machine_state` returned.

    What the measurement says already stays.
    """
    own: dict[str, Scalar] = {TERM + name: float(f"{value:.4g}") for name, value in terms.items()}
    own.update(candidate.describe(measurement.problem.size))
    return dataclasses.replace(
        measurement,
        origin=measurement.origin or candidate.origin,
        predicted=predicted,
        resources=candidate.resources or measurement.resources,
        state=tuple(sorted({**dict(moment), **own, **dict(measurement.state)}.items())),
        machine=measurement.machine or device.described(measurement.problem.device),
    )


def machine_state(target: torch.device) -> State:
    """Clock of the processor (of a GPU its clocks, temperature and power) and how many processes wanted to run ("load", over
    the last minute)."""
    try:
        load: dict[str, Scalar] = {"load": round(os.getloadavg()[0], 2)}
    except OSError:
        load = {}
    now = clocks.clocks(target.index or 0) if target.type == "cuda" else cpu.clocks()
    return tuple(sorted({**now, **load}.items()))
