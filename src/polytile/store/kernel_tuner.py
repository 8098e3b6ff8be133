"""Measurements in Kernel Tuner's T4 results format, version 1.0.0, written for other auto-tuners and read from them.

T4 (https://github.com/odgaard/TuningSchema, copied into Kernel Tuner as schema/T4) is one JSON object with
`schema_version` and `results`. A result has a `configuration` (parameter → value), `times`, `invalidity`, `correctness`
and `measurements`. Here kernel and sizes are parameters too, as one store holds many problems:

    {"kernel": digest, "size.M": 512, "device": ..., "candidate": "looped t2", "config.threads": 2, "hint.M": 64}

Times are milliseconds, as Kernel Tuner writes them. What polytile does not measure (the framework's and the search's
own time) is left out. The schema lets a result have further keys: under "polytile" stands the whole measurement, as in a
JSON line, so that reading the file back loses nothing.

A result of another tool knows its parameters and times alone. It becomes a measurement of a problem of the family "t4" that
is named after the file, on no device of polytile's and in no environment of its: replays use it, lookups never find it.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from polytile.errors import StoreError
from polytile.facts import texts
from polytile.problem import Config, Measurement, Outcome, Problem, digest
from polytile.store import jsonl
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
    Outcome.RESOURCES: "constraints",
}
"""The schema's word for each outcome."""

OUTCOMES = {
    "correct": Outcome.OK,
    "correctness": Outcome.WRONG,
    "compile": Outcome.COMPILE_ERROR,
    "runtime": Outcome.RAISED,
    "timeout": Outcome.TIMEOUT,
    "constraints": Outcome.RESOURCES,
}
"""What another tool's words mean here."""

FAMILY = "t4"
ENVIRONMENT = (("method", "t4"),)
"""Family and environment of what another tool measured."""


def text(records: Iterable[Record]) -> str:
    """The records as a T4 results file."""
    results = [result(record) for record in records]
    return json.dumps({"schema_version": VERSION, "results": results}, indent=1, allow_nan=False) + "\n"


def result(record: Record) -> dict[str, Any]:
    """A record as an entry of `results` in T4; times are in milliseconds."""
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
        "polytile": jsonl.values_of(record),
    }


def _configuration(m: Measurement) -> dict[str, Any]:
    return {
        "kernel": m.problem.kernel,
        "family": m.problem.family,
        **{f"size.{name}": size for name, size in m.problem.sizes},
        "dtypes": ",".join(m.problem.dtypes),
        "layouts": ",".join(texts(m.problem.layouts)),
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


def parse(content: Mapping[str, Any], name: str) -> jsonl.Lines:
    """The records in a T4 results file, which messages call `name`; what another tool measured is a problem of that name.

    Raises StoreError where there are results and not one can be read.
    """
    records: list[Record] = []
    damaged: list[str] = []
    kernel = Path(name).stem
    for number, values in enumerate(content["results"], 1):
        try:
            own = values.get("polytile")
            records.append(jsonl.record_of(own) if own is not None else _of_another_tool(values, kernel))
        except jsonl.MALFORMED as error:
            damaged.append(f"{name}: result {number} cannot be read ({jsonl.why(error)}) and is left out")
    if damaged and not records:
        raise StoreError(f"{name} does not hold T4 results ({damaged[0]}).")
    return jsonl.Lines(tuple(records), tuple(damaged))


def _of_another_tool(values: Mapping[str, Any], kernel: str) -> Record:
    """The same result is the same record, however often it is read."""
    times, invalidity = values["times"], values["invalidity"]
    outcome = OUTCOMES[invalidity]
    if outcome is Outcome.OK and not values["correctness"]:
        outcome = Outcome.WRONG
    config = Config.of(**{name: _scalar(value) for name, value in values["configuration"].items()})
    compiling = times.get("compilation_time", times.get("compilation"))  # the schema's name, and Kernel Tuner's
    measurement = Measurement(
        Problem(FAMILY, kernel, (), device=FAMILY),
        str(config),
        config,
        "",
        outcome,
        tuple(float(runtime) / 1e3 for runtime in times.get("runtimes", ())) if outcome is Outcome.OK else (),
        compile_seconds=None if compiling is None else float(compiling) / 1e3,
        detail="" if outcome is Outcome.OK else invalidity,
        environment=ENVIRONMENT,
        origin=FAMILY,
    )
    return Record(digest(json.dumps([kernel, values], sort_keys=True), 24), _taken_at(values), measurement)


def _scalar(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else json.dumps(value)


def _taken_at(values: Mapping[str, Any]) -> float:
    """Seconds since 1970; 0 where the result does not say. A time without a zone is taken as UTC."""
    if "timestamp" not in values:
        return 0.0
    said = datetime.datetime.fromisoformat(values["timestamp"].replace("Z", "+00:00"))
    return (said if said.tzinfo else said.replace(tzinfo=datetime.timezone.utc)).timestamp()
