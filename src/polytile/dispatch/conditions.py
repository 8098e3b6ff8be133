"""Everything that decides which candidate runs a kernel, except its text and the sizes of the call. The keys are made here and
in plan_conditions.py, which needs no PyTorch.

    within a process    all of Conditions: programs share a kernel, and its decisions, only where they are equal (registry.py)
    in the store        `team` (plan_conditions.py) among the layouts of the problem (spec.py); the environment
    on disk             all of Conditions but for the options PASSING (recorded.py, compiler/stored.py)
    in a plan           `plan_conditions`: a plan takes the place of the options by which choices are made, and of measuring
                        (planfile.py)

The options that take part are the rows of `polytile.options.TABLE`, and the registered ones, that tell kernels apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from polytile import options
from polytile.dispatch.plan_conditions import plan_conditions
from polytile.facts import Fact
from polytile.store.records import Environment
from polytile.tuning.environment import environment


@dataclass(frozen=True)
class Conditions:
    """`options` has (name, value as text) of every option that tells kernels apart; `plan_conditions` is what a plan's decisions
    hold under."""

    options: tuple[tuple[str, str], ...]
    plan_conditions: tuple[Fact, ...]
    environment: Environment
    deterministic: bool


def conditions(target: torch.device) -> Conditions:
    """The present conditions of a kernel on `target`."""
    given = tuple((name, repr(value)) for name, value in options.of_kernels().items())
    return Conditions(given, plan_conditions(target.type), environment(target), torch.are_deterministic_algorithms_enabled())


PASSING = frozenset({"cache_dir", "debug", "metrics", "persist", "stall"})
"""Options that only say where something is, where it goes, or who waits. Decisions of one process hold in others with different
values of them."""


def conditions_on_disk(target: torch.device) -> Conditions:
    """The conditions of files for other processes."""
    here = conditions(target)
    return replace(here, options=tuple((name, value) for name, value in here.options if name not in PASSING))


def changing() -> tuple[object, ...]:
    """Differs whenever a running process has changed its conditions, by `options.override` or by torch's settings. For calls that
    no guards of Dynamo's stand before; takes under a microsecond."""
    given = options.overridden()
    return repr(sorted(given.items())) if given else "", torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
