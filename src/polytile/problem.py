"""Problem, Config and Measurement: the plain frozen values that every room shares.

Generation makes candidates for a Problem, selection picks one, tuning measures it, the store keeps the
Measurement and answers with it later. Nothing here knows how any of that is done.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from polytile.facts import Fact, texts

Scalar = int | float | str | bool


def digest(text: str, length: int = 16) -> str:
    """First `length` hexadecimal digits of the SHA-256 of `text`; names things by content."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def sizes_text(sizes: Iterable[tuple[str, int]], between: str = ", ") -> str:
    """Named sizes as a person writes them: "M=64, N=512"."""
    return between.join(f"{name}={size}" for name, size in sizes)


def time_text(seconds: float) -> str:
    """A kernel's time as a person reads it: "4.69 µs", "19 670 µs"; four digits, or all of them before the point."""
    micros = seconds * 1e6
    return f"{micros:.4g} µs" if micros < 9999.5 else f"{micros:,.0f} µs".replace(",", " ")


@dataclass(frozen=True)
class Config:
    """The tunable numbers of one kernel (variant, threads, blocks, ...), in a fixed order.

    `hint` names the sizes the config was made for; it is part of the identity, so equal numbers made for different hints stay
    apart. Raises ValueError for infinity and NaN, which stores cannot hold.
    """

    values: tuple[tuple[str, Scalar], ...] = ()
    hint: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.values:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"config value {name!r} is {value}; the numbers of a config are finite.")

    @staticmethod
    def of(hint: Mapping[str, int] | None = None, **values: Scalar) -> Config:
        return Config(tuple(sorted(values.items())), tuple(sorted((hint or {}).items())))

    def __getitem__(self, name: str) -> Scalar:
        return dict(self.values)[name]

    def get(self, name: str, default: Scalar | None = None) -> Scalar | None:
        return dict(self.values).get(name, default)

    @cached_property
    def text(self) -> str:
        """Canonical text of values and hint: what a store has in its column `config`."""
        return json.dumps([self.values, self.hint], separators=(",", ":"))

    def __str__(self) -> str:
        numbers = " ".join(f"{k}={v}" for k, v in self.values)
        made_for = " for " + sizes_text(self.hint, ",") if self.hint else ""
        return (numbers or "default") + made_for


@dataclass(frozen=True)
class Problem:
    """One piece of work to choose a kernel for.

    family   "loop", "mm", ...
    kernel   the content digest of the work itself: IR text with canonical names, or the template and its epilogue
    sizes    the concrete run-time sizes by name, in elements
    dtypes   of the tensor arguments, as "float32"
    layouts  what else about the arguments matters, as facts: order of strides, alignment, divisibility, and on a CPU the threads
    device   a device's fingerprint (runtime/device.py)
    """

    family: str
    kernel: str
    sizes: tuple[tuple[str, int], ...]
    dtypes: tuple[str, ...] = ()
    layouts: tuple[Fact, ...] = ()
    device: str = "cpu"

    @cached_property
    def key(self) -> str:
        """Canonical text of every field: equal problems, and only those, have equal keys."""
        fields = [self.family, self.kernel, self.sizes, self.dtypes, texts(self.layouts), self.device]
        return json.dumps(fields, separators=(",", ":"))

    @property
    def size(self) -> dict[str, int]:
        return dict(self.sizes)

    def __str__(self) -> str:
        return f"{self.family} {self.kernel[:8]} [{sizes_text(self.sizes)}]"


class Outcome(enum.Enum):
    """How the attempt to run a candidate on a problem ended."""

    OK = "ok"
    WRONG = "wrong result"
    COMPILE_ERROR = "did not compile"
    CRASHED = "crashed"
    TIMEOUT = "timed out"
    RAISED = "raised an error"
    OUT_OF_MEMORY = "ran out of memory"
    RESOURCES = "takes too many resources"


@dataclass(frozen=True)
class Resources:
    """The resources of a kernel as the compiler reports them: registers per thread, spilled bytes per thread, bytes of shared
    memory per block. None if unknown, or if the device has none."""

    registers: int | None = None
    spilled_bytes: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True)
class Measurement:
    """One candidate on one problem: every timing sample (seconds), the outcome and the error found. Never overwritten.

    `problem`, `environment`, `candidate`, `config` and `source_hash` are its key: they must be equal for it to speak about
    a candidate. The rest is what was found: `origin` is the source that the candidate came from, `predicted` the seconds
    that its own model expected, `state` the conditions of that moment (clocks, disturbance; numbers that are not finite are
    kept as text), `machine` the facts that the problem's device fingerprint stands for.
    """

    problem: Problem
    candidate: str
    config: Config
    source_hash: str
    outcome: Outcome
    samples: tuple[float, ...] = ()
    max_error: float | None = None
    compile_seconds: float | None = None
    detail: str = ""
    condition: str = "back-to-back"
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    origin: str = ""
    predicted: float | None = None
    resources: Resources = Resources()
    state: tuple[tuple[str, Scalar], ...] = ()
    machine: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)
