"""Equal tuples of candidates share one MultiKernel; and which MultiKernels are alive."""

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
    """The MultiKernel of these candidates, under the options in force.

    It is an existing one if that has the same candidates, arguments, conditions (conditions.py) and owner, and the same
    program's budget for measuring if it has one. Its name and operators may differ.
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
    """Equal for candidates that run the same code. A candidate with a recipe is identified by it, so that its source need not
    be generated: a matmul has sixty candidates, and a program needs three."""
    recipe = candidate.recipe or candidate.source_hash
    return candidate.name, candidate.config.text, recipe


def alive() -> list[MultiKernel]:
    """Every MultiKernel that some program still holds, by name; those of one name in the order in which they were made."""
    with _lock:
        return sorted(_defined.values(), key=lambda multikernel: multikernel.spec.name)
