"""Measurements in Kernel Tuner's T4 results format, version 1.0.0, for tools that compare auto-tuners.

T4 (https://github.com/odgaard/TuningSchema, copied into Kernel Tuner as schema/T4) is one JSON object with
`schema_version` and `results`. A result has a `configuration` (parameter → value), `times`, `invalidity`, `correctness`
and `measurements`. Here kernel and sizes are parameters too, as one store holds many problems:

    {"kernel": digest, "size.M": 512, "device": ..., "candidate": "looped t2", "config.threads": 2, "hint.M": 64}

Times are milliseconds, as Kernel Tuner writes them. What polytile does not measure (the framework's and the search's
own time) is left out.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable
from typing import Any

from polytile.problem import Measurement, Outcome
from polytile.store.reading import Record
from polytile.store.summary import summarise

VERSION = "1.0.0"

INVALIDITY = {
    Outcome.OK: "correct",
    Outcome.WRONG: "correctness",
    Outcome.COMPILE_ERROR: "compile",
    Outcome.CRASHED: "runtime",
    Outcome.RAISED: "runtime",
    Outcome.TIMEOUT: "timeout",
    Outcome.OUT_OF_MEMORY: "runtime",
}
"""The schema's word for each outcome; its sixth, "constraints", is for candidates that are never tried here."""


def text(found: Iterable[Record]) -> str:
    """The records as a T4 results file."""
    results = [result(record) for record in found]
    return json.dumps({"schema_version": VERSION, "results": results}, indent=1, allow_nan=False) + "\n"


def result(record: Record) -> dict[str, Any]:
    """One measurement as one result."""
    m = record.measurement
    times: dict[str, Any] = {"runtimes": [sample * 1e3 for sample in m.samples]}
    if m.compile_seconds is not None:
        times["compilation_time"] = m.compile_seconds * 1e3
    return {
        "timestamp": datetime.datetime.fromtimestamp(record.taken_at, datetime.timezone.utc).isoformat(),
        "configuration": _configuration(m),
        "times": times,
        "invalidity": INVALIDITY[m.outcome],
        "correctness": 1 if m.outcome is Outcome.OK else 0,
        "measurements": _measurements(m),
        "objectives": ["time"],
    }


def _configuration(m: Measurement) -> dict[str, Any]:
    return {
        "kernel": m.problem.kernel,
        "family": m.problem.family,
        **{f"size.{name}": size for name, size in m.problem.sizes},
        "dtypes": ",".join(m.problem.dtypes),
        "layouts": ",".join(m.problem.layouts),
        "device": m.problem.device,
        "candidate": m.candidate,
        **{f"config.{name}": value for name, value in m.config.values},
        **{f"hint.{name}": size for name, size in m.config.hint},
    }


def _measurements(m: Measurement) -> list[dict[str, Any]]:
    seconds, noise = summarise(m.samples)
    values = [
        ("time", seconds * 1e3, "ms"),
        ("noise", noise, ""),
        ("max_error", m.max_error, ""),
        ("predicted", None if m.predicted is None else m.predicted * 1e3, "ms"),
        ("registers", m.resources.registers, ""),
        ("spilled_bytes", m.resources.spilled_bytes, "B"),
        ("shared_bytes", m.resources.shared_bytes, "B"),
    ]
    known = [(name, value, unit) for name, value, unit in values if value is not None and not math.isnan(value)]
    return [
        {"name": name, "value": value if math.isfinite(value) else str(value), "unit": unit}
        for name, value, unit in known
        if m.samples or name not in ("time", "noise")
    ]


__all__ = ["INVALIDITY", "VERSION", "result", "text"]
