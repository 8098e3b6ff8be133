"""Hazards for tuning in an autotuned kernel's source: `polytile autotune --scan`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from polytile.autotuner.effects import Effects, effects_of, python_function


@dataclass(frozen=True)
class Hazard:
    """A hazard of a kernel: `what` describes the problem and `then` its consequence; `line` is in the kernel's file."""

    kernel: str
    line: int
    what: str
    then: str


def hazards_of(tuner: Any) -> list[Hazard]:
    """The hazards of an autotuner, Triton's or polytile's; none if its source cannot be read."""
    function = python_function(tuner)
    effects = effects_of(function) if function is not None else None
    if function is None or effects is None or not effects.known:
        return []
    first = inspect.getsourcelines(function)[1]
    rows = (one for rule in RULES for one in rule(tuner, effects))
    return [Hazard(function.__name__, effects.stores.get(name, first), what, then) for name, what, then in rows]


Found = Iterator[tuple[str, str, str]]
"""(parameter, problem, consequence)."""


def _in_place(tuner: Any, effects: Effects) -> Found:
    kept = {*tuner.reset_to_zero, *tuner.restore_value}
    if _has_hook(tuner):
        return
    for name in _ordered(effects, (effects.read & effects.written) - effects.added - kept):
        yield (
            name,
            f"changes {name!r}, which it reads",
            f"triton.autotune changes it once for each config: add restore_value=[{name!r}]. polytile.autotune tries on copies.",
        )


def _missing_reset(tuner: Any, effects: Effects) -> Found:
    kept = {*tuner.reset_to_zero, *tuner.restore_value}
    if _has_hook(tuner):
        return
    for name in _ordered(effects, effects.added - kept):
        yield (
            name,
            f"adds to {name!r} by atomic operations",
            f"triton.autotune adds once for each config: add reset_to_zero=[{name!r}]. polytile.autotune tries on copies.",
        )


def _missing_size(tuner: Any, effects: Effects) -> Found:
    """A parameter that bounds a loop determines how long a program runs."""
    numbers = [name for name in effects.params if name not in effects.constexprs and name not in effects.pointers]
    for name in numbers:
        if name in effects.loops and name not in tuner.keys:
            yield (
                name,
                f"loops up to {name!r}, which is not in key",
                f"the config of the first call serves all others, whatever their {name}: add {name!r} to key.",
            )
    masks = [name for name in numbers if name in effects.masks and name not in effects.loops]
    if masks and not effects.loops & set(numbers) and not set(masks) & set(tuner.keys):
        names = ", ".join(map(repr, masks))
        yield masks[0], f"masks by {names}, and none of its sizes is in key", f"all sizes share one config: add {names} to key."


def _unknown_names(tuner: Any, effects: Effects) -> Found:
    for word, names in (("key", tuner.keys), ("reset_to_zero", tuner.reset_to_zero), ("restore_value", tuner.restore_value)):
        for name in names:
            if name not in effects.params:
                yield name, f"{word} names {name!r}, which is no parameter", "Triton passes over it without a word."


RULES: tuple[Callable[[Any, Effects], Found], ...] = (_in_place, _missing_reset, _missing_size, _unknown_names)


def _has_hook(tuner: Any) -> bool:
    return tuner.user_defined_pre_hook or any(config.pre_hook is not None for config in tuner.configs)


def _ordered(effects: Effects, names: frozenset[str]) -> list[str]:
    return [name for name in effects.params if name in names & effects.pointers]

