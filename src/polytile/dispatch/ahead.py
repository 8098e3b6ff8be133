"""Another process generates and compiles candidates (runtime/builder.py, compiler/handed.py), which leaves Python's lock to
calls. It puts the results into the cache directory, so that preparing the candidates here only loads them. An error there
occurs again here."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp import CompiledCandidate
from polytile.dispatch import recorded
from polytile.errors import LoweringError
from polytile.ir.serialise import Unstorable
from polytile.runtime import background, builder, spare_core

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel

log = logging.getLogger("polytile")

Document = dict[str, Any]

_documents: weakref.WeakKeyDictionary[MultiKernel, Document | None] = weakref.WeakKeyDictionary()
"""What each kernel is made from, as JSON; None if it has no form as JSON."""


def compile_elsewhere(
    multikernel: MultiKernel, candidates: Iterable[Candidate], meanwhile: Callable[[], None] | None = None
) -> None:
    """Makes another process compile the candidates that are not in the cache directory. Does nothing if the program makes no
    calls, or if that process cannot compile them. `meanwhile`: see builder.ask."""
    if not (background.is_here() and builder.wanted()):
        return
    lacking = [c.name for c in candidates if isinstance(c, CompiledCandidate) and not c.is_cached()]
    work = _document(multikernel) if lacking else None
    if work is None:
        return
    try:
        with spare_core.wanted():
            builder.ask("kernels", {"work": work, "candidates": lacking}, meanwhile=meanwhile)
    except builder.BuilderFailed as why:
        log.info("Candidates of kernel %r are compiled in this process: %s", multikernel.spec.name, why)


def start_compiling(candidate: Candidate) -> None:
    """Starts compiling a candidate. One that has no source for its facts fails when it is asked for, not here."""
    with contextlib.suppress(LoweringError):
        candidate.prepare()


def _document(multikernel: MultiKernel) -> Document | None:
    if multikernel not in _documents:
        work = recorded.work_of(multikernel)
        try:
            _documents[multikernel] = None if work is None else work.document()
        except Unstorable as why:
            log.info("Candidates of kernel %r are compiled in this process: %s.", multikernel.spec.name, why)
            _documents[multikernel] = None
    return _documents[multikernel]
