"""A kernel, y = 2 x over (M, N), with candidates whose speed the tests say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile import store
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry, PythonEntry
from polytile.dispatch.spec import ArgInfo, KernelSpec
from polytile.problem import Config, digest
from polytile.runtime import noise

Speed = Callable[[Mapping[str, int]], float]


def double(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
    y.copy_(x * 2)


@dataclass
class Fake(Candidate):
    """A candidate. `speed`: seconds by the fake clock, a number or a function of the sizes; `predicted`: its prior."""

    name: str
    speed: float | Speed = 1e-5
    predicted: float | Speed = 1e-5
    origin: str = "cpp"
    call: Callable[..., None] = double
    failure: Exception | None = None
    can: Callable[[Mapping[str, int]], bool] = lambda sizes: True
    config: Config = field(default_factory=Config)
    source_hash: str = ""
    hard_limits: bool = False
    recipe: str = ""
    traits: tuple[tuple[str, int], ...] = ()
    steady: bool = True
    parts: dict[str, float] = field(default_factory=dict)
    operators: tuple[str, ...] = ()
    calls: list[tuple[int, ...]] = field(default_factory=list)
    prepared: int = 0
    entries: int = 0

    def __post_init__(self) -> None:
        self.source_hash = self.source_hash or digest(self.name)

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return self.can(sizes)

    def cost(self, sizes: Mapping[str, int]) -> float:
        return self.predicted(sizes) if callable(self.predicted) else self.predicted

    def terms(self, sizes: Mapping[str, int]) -> dict[str, float]:
        return self.parts

    def prepare(self) -> None:
        self.prepared += 1

    def entry(self) -> Entry:
        if self.failure is not None:
            raise self.failure
        self.entries += 1
        return PythonEntry(Call(self))

    def seconds(self, ints: Sequence[int]) -> float:
        return self.speed(dict(zip(("M", "N"), ints, strict=True))) if callable(self.speed) else self.speed


@dataclass
class Call:
    owner: Fake

    def __call__(self, *args: Any) -> None:
        self.owner.calls.append(args[2:])
        self.owner.call(*args)


SPEC = KernelSpec(
    name="double",
    family="loop",
    kernel=digest("y = 2 x"),
    args=(ArgInfo("x", torch.float32), ArgInfo("y", torch.float32, "out")),
    size_names=("M", "N"),
    size_codes=(1, 1),
    reduction_hint="inner",
    source_ops=("aten.mul",),
    device="cpu-test",
    reference=double,
    make_args=lambda sizes: (
        noise.normal(sizes["M"] * sizes["N"]).view(sizes["M"], sizes["N"]),
        torch.zeros(sizes["M"], sizes["N"]),
        sizes["M"],
        sizes["N"],
    ),
)


def spec(**changes: Any) -> KernelSpec:
    return dataclasses.replace(SPEC, **changes)


def arguments(m: int, n: int = 64) -> tuple[Any, ...]:
    return torch.randn(m, n), torch.zeros(m, n), m, n


def new_process() -> None:
    """Forgets what a process remembers, as a new one would."""
    store.forget()
