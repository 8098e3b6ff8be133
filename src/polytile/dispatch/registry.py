"""One MultiKernel for each tuple of sub-kernels, and which ones are alive."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

from polytile import locks, options
from polytile.candidates.candidate import Candidate
from polytile.dispatch.conditions import conditions
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.spec import KernelSpec
from polytile.tuning import budget

_lock = locks.lock()
_defined: weakref.WeakValueDictionary[Any, MultiKernel] = weakref.WeakValueDictionary()


def define(spec: KernelSpec, candidates: Sequence[Candidate], owner: int = 0) -> MultiKernel:
    """The MultiKernel of these sub-kernels. It keeps the options in force.

    An existing one if it has the same tuple of sub-kernels, the same arguments, conditions (conditions.py) and owner, and is
    measured on behalf of the same program where that has a budget, whatever its name and operators; else a new one.
    """
    same_work = dataclasses.replace(spec, name="", source_ops=())
    alike = tuple(_made_alike(candidate) for candidate in candidates)
    here, of_program = conditions(spec.target), budget.of_program()
    key = (same_work, alike, here, of_program, owner)
    with _lock:
        known = _defined.get(key)
        if known is None:
            given = {**options.overridden(), **options.of_kernels()}
            known = _defined[key] = MultiKernel(spec, candidates, given, of_program)
        return known


def _made_alike(candidate: Candidate) -> tuple[str, str, str]:
    """Equal for candidates that run the same code. A candidate with a recipe is told apart by that, without its source being
    generated: a matmul has sixty candidates, of which a program needs three."""
    recipe = candidate.recipe or candidate.source_hash
    return candidate.name, candidate.config.text, recipe


def alive() -> list[MultiKernel]:
    """Every MultiKernel that some program still holds, by name."""
    with _lock:
        return sorted(_defined.values(), key=lambda multikernel: multikernel.spec.name)
