"""Measurements as rows of text and numbers, and back; and the Summary of a measurement that lookups return."""

from __future__ import annotations

import functools
import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from polytile.facts import OF_PROBLEMS, read_all, texts
from polytile.problem import Config, Measurement, Outcome, Problem, Resources, digest
from polytile.store.summary import summarise

Environment = tuple[tuple[str, str], ...]
Identity = tuple[str, str, str]
Columns = Mapping[str, Any]
"""A row of a table, by the names of its columns."""

SUMMARY_COLUMNS = tuple(
    "id uid problem relatives sizes candidate config source_hash outcome seconds noise condition state".split()
)
"""The columns of schema.SUMMARIES, in order."""


class Identified(Protocol):
    """What has an `identity`: every Candidate."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> Config: ...
    @property
    def source_hash(self) -> str: ...


def identity(candidate: Identified) -> Identity:
    """(name, config with its hint, source hash): what must be equal for a measurement to speak about `candidate`."""
    return candidate.name, candidate.config.text, candidate.source_hash


@dataclass(frozen=True)
class Taken:
    """What a measurement says about its candidate: the candidate's identity, the outcome, the seconds with their relative error,
    and the conditions at that moment."""

    who: Identity
    outcome: Outcome
    seconds: float
    noise: float
    condition: str
    region_excess: float
    disturbed: float


@dataclass(frozen=True)
class Summary:
    """What a lookup returns of one measurement: the candidate's identity, the outcome, the seconds and their relative error."""

    uid: str
    problem: str
    relatives: str
    sizes: str
    who: Identity
    outcome: Outcome
    seconds: float
    noise: float
    condition: str = "back-to-back"
    state: str = "[]"

    @property
    def region_excess(self) -> float:
        """Seconds that an empty parallel region took at that moment beyond the least seen by then; 0 where unknown."""
        return region_excess(pairs(self.state)) if REGION in self.state else 0.0

    @property
    def disturbed(self) -> float:
        """For which part of the race the process's threads waited for a core."""
        return disturbed(pairs(self.state)) if DISTURBED in self.state else 0.0

    @property
    def size(self) -> dict[str, int]:
        """The problem's sizes by name."""
        return dict(json.loads(self.sizes))


Reading = Taken | Summary
"""What a candidate's score is made of."""

GATE = ("gate", 2)
"""Stands in the state of a measurement with a wrong result: the version of the rules by which the accuracy gate called it wrong.
Verdicts by other rules are passed over. Those of version 1, which has no mark, measured errors of sums that cancel to about 0
against the result rather than against the terms."""

REGION, LEAST_REGION = "region_seconds", "least_region_seconds"
"""The names in a measurement's state of the time of an empty parallel region, and of the least time seen for one so far."""


LIVE = "live"
"""The name that a measurement's state has if the program's own calls were timed."""

TERM = "term "
"""How the names of a prediction's terms begin in the state of a measurement, where models and reports find them."""

DISTURBED = "disturbed"
"""The name in a measurement's state of the share of the race during which the process's threads waited for a core that another
program had."""


def disturbed(state: Iterable[tuple[str, Any]]) -> float:
    """The value of DISTURBED in a measurement's state; 0 if it is missing."""
    return float(dict(state).get(DISTURBED, 0.0))


def region_excess(state: Iterable[tuple[str, Any]]) -> float:
    """By how many seconds REGION exceeds LEAST_REGION in a measurement's state; 0 if they are missing."""
    facts = dict(state)
    return float(facts[REGION]) - float(facts[LEAST_REGION]) if REGION in facts and LEAST_REGION in facts else 0.0


def counts(outcome: str, state: str) -> bool:
    """Whether a measurement with these columns still says anything about a candidate."""
    return outcome != Outcome.WRONG.value or compact(GATE) in state


def compact(value: Any) -> str:
    """JSON without spaces: one text for one value, so that it can be compared and hashed."""
    return json.dumps(value, separators=(",", ":"))


def finite_or_text(value: Any) -> Any:
    """The value; infinity and NaN, which JSON lacks, as "inf", "-inf" and "nan"."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@functools.lru_cache(maxsize=4096)
def config_of(text: str) -> Config:
    """The Config of which this is the text."""
    values, hint = json.loads(text)
    return Config(tuple((k, v) for k, v in values), tuple((k, v) for k, v in hint))


def problem_digest(problem: Problem) -> str:
    """A digest of the problem, the same on every machine."""
    return digest(problem.key, 24)


def relatives_digest(problem: Problem) -> str:
    """A digest of everything about the problem but its sizes."""
    return digest(compact([problem.family, problem.kernel, problem.dtypes, texts(problem.layouts), problem.device]), 24)


def environment_text(environment: Iterable[tuple[str, str]]) -> str:
    """The facts in the order of their names, as the column `facts` has them."""
    return compact(sorted(environment))


def environment_digest(environment: Iterable[tuple[str, str]]) -> str:
    """A digest of the environment, whatever the order of its facts."""
    return digest(environment_text(environment), 24)


@dataclass(frozen=True)
class Rows:
    """The rows of one measurement, by table. There is no device row where nothing is known of the device but its name.

    `samples` are numbers here; each database writes them in its own type.
    """

    problem: Columns
    environment: Columns
    measurement: Columns
    device: Columns | None = None

    @property
    def summary(self) -> tuple[Any, ...]:
        """The row of schema.SUMMARIES that this measurement will be; its number is not known yet."""
        row = {**self.problem, **self.measurement, "id": 0}
        return tuple(row[name] for name in SUMMARY_COLUMNS)


def rows_of(measurement: Measurement) -> Rows:
    """The rows that a measurement taken now becomes: with a new uid, and this moment as `taken_at`."""
    problem = measurement.problem
    environment = environment_text(measurement.environment)
    seconds, noise = summarise(measurement.samples)
    problem_row = {
        "digest": problem_digest(problem),
        "relatives": relatives_digest(problem),
        "family": problem.family,
        "kernel": problem.kernel,
        "sizes": compact(problem.sizes),
        "dtypes": compact(problem.dtypes),
        "layouts": compact(texts(problem.layouts)),
        "device": problem.device,
    }
    measurement_row = {
        "uid": os.urandom(12).hex(),
        "taken_at": time.time(),
        "problem": problem_row["digest"],
        "environment": digest(environment, 24),
        "candidate": measurement.candidate,
        "config": measurement.config.text,
        "source_hash": measurement.source_hash,
        "outcome": measurement.outcome.value,
        "seconds": seconds if measurement.samples else None,
        "noise": noise if math.isfinite(noise) else None,
        "samples": measurement.samples,
        "max_error": measurement.max_error,
        "compile_seconds": measurement.compile_seconds,
        "detail": _storable(measurement.detail),
        "condition": measurement.condition,
        "origin": measurement.origin,
        "predicted": measurement.predicted,
        "registers": measurement.resources.registers,
        "spilled_bytes": measurement.resources.spilled_bytes,
        "shared_bytes": measurement.resources.shared_bytes,
        "state": compact([(name, finite_or_text(value)) for name, value in sorted(measurement.state)]),
    }
    environment_row = {"digest": measurement_row["environment"], "facts": environment}
    device_row = {"fingerprint": problem.device, "facts": compact(sorted(measurement.machine))}
    return Rows(problem_row, environment_row, measurement_row, device_row if measurement.machine else None)


def _storable(text: str) -> str:
    """A text from outside, such as a compiler's messages, without what no database takes (lone surrogates, NUL)."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
"""An outcome that a newer polytile has a word for counts as an error raised: the candidate cannot be used either way."""


def summary_of(row: tuple[Any, ...]) -> Summary:
    """A row of schema.SUMMARIES."""
    _, uid, problem, relatives, sizes, candidate, config, source_hash, outcome, seconds, noise, condition, state = row
    return Summary(
        uid,
        problem,
        relatives,
        sizes,
        (candidate, config, source_hash),
        _OUTCOMES.get(outcome, Outcome.RAISED),
        math.nan if seconds is None else seconds,
        math.inf if noise is None else noise,
        condition,
        state,
    )


def reading_of(measurement: Measurement) -> Taken:
    """The Reading of a measurement."""
    seconds, noise = summarise(measurement.samples)
    return Taken(
        (measurement.candidate, measurement.config.text, measurement.source_hash),
        measurement.outcome,
        seconds,
        noise,
        measurement.condition,
        region_excess(measurement.state),
        disturbed(measurement.state),
    )


def measurement_of(row: Sequence[Any]) -> Measurement:
    """A row of schema.RECORDS without its first two columns, uid and taken_at, and without those that follow."""
    family, kernel, sizes, dtypes, layouts, device, facts, candidate, config, source_hash, outcome, *rest = row
    samples, max_error, compile_seconds, detail, condition, origin, predicted, *rest = rest
    registers, spilled_bytes, shared_bytes, state, machine = rest
    return Measurement(
        problem_of(family, kernel, sizes, dtypes, layouts, device),
        candidate,
        config_of(config),
        source_hash,
        _OUTCOMES.get(outcome, Outcome.RAISED),
        tuple(json.loads(samples) if isinstance(samples, str) else samples),
        max_error,
        compile_seconds,
        detail,
        condition,
        pairs(facts),
        origin,
        predicted,
        Resources(registers, spilled_bytes, shared_bytes),
        pairs(state),
        pairs(machine) if machine else (),
    )


@functools.lru_cache(maxsize=4096)
def problem_of(family: str, kernel: str, sizes: str, dtypes: str, layouts: str, device: str) -> Problem:
    """The problem of these columns."""
    return Problem(family, kernel, pairs(sizes), tuple(json.loads(dtypes)), read_all(json.loads(layouts), OF_PROBLEMS), device)


@functools.lru_cache(maxsize=4096)
def pairs(text: str) -> tuple[tuple[str, Any], ...]:
    """Pairs as `compact` wrote them."""
    return tuple((name, value) for name, value in json.loads(text))
