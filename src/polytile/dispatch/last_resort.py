"""What runs a kernel if choosing its candidate fails: a defect of polytile's own must not make a user's call raise."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from polytile import options
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry
from polytile.counters import counters
from polytile.dispatch.spec import KernelSpec
from polytile.errors import CompileFailed, IRError, LoweringError, LoweringFailed, PolytileError
from polytile.problem import sizes_text

log = logging.getLogger("polytile.dispatch")

DEFECTS = (CompileFailed, IRError, LoweringError, LoweringFailed)
"""Errors of polytile's classes that are its own fault, not that of its input."""

DATA = (IndexError, MemoryError, torch.OutOfMemoryError)
"""Errors that a kernel raises because of its arguments, or for want of memory."""


def is_defect(error: Exception) -> bool:
    """Whether `error`, raised while a candidate was chosen, must not reach the caller."""
    if options.get("on_failure") == "raise" or isinstance(error, DATA):
        return False
    return isinstance(error, DEFECTS) or not isinstance(error, PolytileError)


def entry(spec: KernelSpec, candidates: Sequence[Candidate], sizes: Mapping[str, int], error: Exception) -> Entry:
    """The entry of the first candidate that can be made; the library's and the interpreter's come before generated ones. Raises
    `error` if there is none."""
    at_hand = sorted(candidates, key=lambda candidate: candidate.origin not in ("library", "reference"))
    for candidate in at_hand:
        try:
            if candidate.valid(sizes):
                candidate.prepare()
                function = candidate.entry()
                instead = f"; {candidate.name!r} runs it at {sizes_text(sizes.items())}"
                report_failure(spec, "choose a candidate of", error, instead)
                return function
        except Exception as another:
            log.info("Candidate %r of kernel %r cannot stand in.", candidate.name, spec.name, exc_info=another)
    raise error


def report_failure(spec: KernelSpec, what: str, error: Exception, then: str = "") -> None:
    """Counts and logs a failure of polytile's own."""
    counters.add("failures")
    log.warning("polytile failed to %s kernel %r (%s: %s)%s.", what, spec.name, type(error).__name__, error, then)
    log.info("polytile failed", exc_info=error)
