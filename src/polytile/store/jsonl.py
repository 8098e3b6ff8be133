"""Measurements as JSON lines: one a line, each complete in itself, so that files can be concatenated, cut, searched
and read anywhere.

    {"format": "polytile measurements", "version": 1}
    {"uid": "5b0c...", "taken_at": 1766000000.0, "problem": {"family": "loop", "kernel": "1f0c...", "sizes": {"M": 64},
     "dtypes": ["float32"], "layouts": ["threads=2"], "device": "cpu-..."}, "environment": {"torch": "2.13.0"},
     "candidate": "looped t1", "config": {"values": {"threads": 1}, "hint": {}}, "source_hash": "...", "outcome": "ok",
     "samples": [1e-05], "max_error": 1e-07, "compile_seconds": 0.3, "detail": "", "condition": "back-to-back",
     "origin": "cpp", "predicted": 2e-05, "resources": {"registers": null, "spilled_bytes": null, "shared_bytes": null},
     "state": {"mhz": 2450.0}, "machine": {"model": "..."}}

(on one line each). Times are seconds. The header may come again further down. The keys after "condition" may be missing,
as in older files, whose names are read as the present ones (words.py); keys that this version does not know are passed over.
Infinity and NaN, which JSON lacks, are the texts "inf", "-inf" and "nan".
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from polytile.errors import StoreError
from polytile.facts import OF_PROBLEMS, read_all, texts
from polytile.problem import Config, Measurement, Outcome, Problem, Resources
from polytile.store import words
from polytile.store.reading import Record
from polytile.store.records import finite_or_text

FORMAT, VERSION = "polytile measurements", 1
MALFORMED = (ValueError, KeyError, TypeError, AttributeError)
"""What values that are no measurement raise."""

RESOURCES = tuple(field.name for field in dataclasses.fields(Resources))


class NotExported(StoreError):
    """A file holds something else than exported measurements."""


@dataclass(frozen=True)
class Lines:
    """What a file holds. `damaged` has a sentence for each measurement that cannot be read, `partial` one for a last line
    that was never finished ("": there is none)."""

    records: tuple[Record, ...]
    damaged: tuple[str, ...] = ()
    partial: str = ""


def header() -> str:
    """The first line of a file: which format it is, in which version."""
    return json.dumps({"format": FORMAT, "version": VERSION}) + "\n"


def line(record: Record) -> str:
    """The record as a line, its end included."""
    return json.dumps(values_of(record), allow_nan=False) + "\n"


def values_of(record: Record) -> dict[str, Any]:
    """A record as the JSON of one line of an export."""
    m = record.measurement
    return {
        "uid": record.uid,
        "taken_at": record.taken_at,
        "problem": {
            "family": m.problem.family,
            "kernel": m.problem.kernel,
            "sizes": dict(m.problem.sizes),
            "dtypes": m.problem.dtypes,
            "layouts": texts(m.problem.layouts),
            "device": m.problem.device,
        },
        "environment": dict(m.environment),
        "candidate": m.candidate,
        "config": {"values": dict(m.config.values), "hint": dict(m.config.hint)},
        "source_hash": m.source_hash,
        "outcome": m.outcome.value,
        "samples": [finite_or_text(sample) for sample in m.samples],
        "max_error": finite_or_text(m.max_error),
        "compile_seconds": finite_or_text(m.compile_seconds),
        "detail": m.detail,
        "condition": m.condition,
        "origin": m.origin,
        "predicted": finite_or_text(m.predicted),
        "resources": dataclasses.asdict(m.resources),
        "state": {name: finite_or_text(value) for name, value in m.state},
        "machine": dict(m.machine),
    }


def parse(content: bytes, name: str) -> Lines:
    """The records in the text of a file, which messages call `name`.

    A last line without an end is read if it is whole, else it is `partial`. Raises StoreError where there are lines and
    not one can be read, and where a newer polytile wrote them.
    """
    records: list[Record] = []
    damaged: list[str] = []
    partial = ""
    headers = 0
    lines = content.split(b"\n")
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            values = json.loads(text)
            if isinstance(values, dict) and "format" in values:
                headers += 1
                _check_header(values, name)
                continue
            records.append(record_of(values))
        except MALFORMED as error:
            if number == len(lines):
                partial = f"{name}: the last line, number {number}, was never finished and is left out"
            else:
                damaged.append(f"{name}: line {number} cannot be read ({why(error)}) and is left out")
    if not records and not headers and (damaged or partial):
        raise NotExported(f"{name} does not hold exported measurements ({(*damaged, partial)[0]}).")
    return Lines(tuple(records), tuple(damaged), partial)


def why(error: Exception) -> str:
    """The message of a MALFORMED error, as a part of a sentence."""
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _check_header(values: dict[str, Any], name: str) -> None:
    if values["format"] != FORMAT:
        raise NotExported(f"{name} does not hold exported measurements but {values['format']!r}.")
    if values.get("version") != VERSION:
        raise StoreError(
            f"{name} holds measurements in version {values.get('version')}, and this polytile reads version {VERSION}; "
            "export them with this version or update polytile."
        )


def record_of(values: dict[str, Any]) -> Record:
    """The record of which these are the `values_of`. Raises a ValueError, KeyError, TypeError or AttributeError where
    something is missing or wrong."""
    problem, config = values["problem"], values["config"]
    measurement = Measurement(
        Problem(
            _text(problem["family"]),
            _text(problem["kernel"]),
            _sizes(problem["sizes"]),
            tuple(map(_text, problem["dtypes"])),
            read_all(map(_text, problem["layouts"]), OF_PROBLEMS),
            _text(problem["device"]),
        ),
        _text(values["candidate"]),
        Config(tuple(config["values"].items()), _sizes(config["hint"])),
        _text(values["source_hash"]),
        Outcome(values["outcome"]),
        tuple(float(sample) for sample in values["samples"]),
        _in(values["max_error"]),
        _in(values["compile_seconds"]),
        _text(values["detail"]),
        _text(values["condition"]),
        tuple(sorted((name, _text(value)) for name, value in values["environment"].items())),
        _text(values.get("origin", "")),
        _in(values.get("predicted")),
        Resources(**{name: values.get("resources", {}).get(name) for name in RESOURCES}),
        tuple(sorted(values.get("state", {}).items())),
        tuple(sorted((name, _text(value)) for name, value in values.get("machine", {}).items())),
    )
    return Record(_text(values["uid"]), float(values["taken_at"]), words.measurement(measurement))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where text belongs")
    return value


def _sizes(values: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    if not all(type(size) is int for size in values.values()):
        raise TypeError(f"{values!r} has something else than integers for sizes")
    return tuple(values.items())


def _in(value: float | str | None) -> float | None:
    return None if value is None else float(value)
