"""One MultiKernel for each tuple of sub-kernels, and which ones are alive."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from polytile import locks
from polytile import options as settings
from polytile.kernels.candidate import Candidate
from polytile.multikernel.multikernel import MultiKernel
from polytile.multikernel.spec import KernelSpec
from polytile.store.records import config_text

_lock = locks.lock()
_defined: weakref.WeakValueDictionary[Any, MultiKernel] = weakref.WeakValueDictionary()


def define(
    spec: KernelSpec, candidates: Sequence[Candidate], options: Mapping[str, Any] | None = None, owner: int = 0
) -> MultiKernel:
    """The MultiKernel of these sub-kernels: an existing one if it has the same tuple of them, the same arguments, the same
    options and the same owner, whatever its name and the operators it came from; else a new one. Whether inputs are checked is
    decided when a kernel is made, so `check_inputs` counts among the options even where it was set for the whole process.
    """
    same_work = dataclasses.replace(spec, name="", source_ops=())
    alike = tuple(_made_alike(candidate) for candidate in candidates)
    options = {"check_inputs": settings.get("check_inputs"), **(options or {})}
    key = (same_work, alike, tuple(sorted(options.items())), owner)
    with _lock:
        known = _defined.get(key)
        if known is None:
            known = _defined[key] = MultiKernel(spec, candidates, options)
        return known


def _made_alike(candidate: Candidate) -> tuple[str, str, str]:
    """Equal for candidates that run the same code. A candidate with a recipe is told apart by that, without its source being
    generated: a matmul has sixty candidates, of which a program needs three."""
    recipe = getattr(candidate, "recipe", "") or candidate.source_hash
    return candidate.name, config_text(candidate.config), recipe


def alive() -> list[MultiKernel]:
    """Every MultiKernel that some program still holds, by name."""
    with _lock:
        return sorted(_defined.values(), key=lambda multikernel: multikernel.spec.name)


__all__ = ["alive", "define"]
