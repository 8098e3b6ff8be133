"""Which candidates are tried in a process of their own before they run in the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polytile import options
from polytile.kernels.candidate import READY_MADE, Candidate

TRUSTED = (*READY_MADE, "reference")
"""Origins whose kernels are never tried apart: libraries' calls and the interpreter are what eager itself runs."""


def apart(candidates: Iterable[Candidate], proven: Callable[[str], bool]) -> frozenset[str]:
    """Names of the candidates to try apart, as the option `isolation` has it. `proven(source_hash)` says whether a kernel of
    this source has come to its end before, on this machine, and never failed to. A candidate that is `interpreted` is run
    by an interpreter, and none of its code by the machine.

    Under "untrusted" that is each source at first sight: what a source does at other sizes later is taken on trust, since
    a kernel that passed the gate once rarely crashes, and a copy of all arguments for every problem is dear.
    """
    mode = options.get("isolation")
    if mode == "never":
        return frozenset()
    others = [c for c in candidates if c.origin not in TRUSTED and not getattr(c, "interpreted", False)]
    return frozenset(c.name for c in others if mode == "always" or not proven(c.source_hash))


__all__ = ["TRUSTED", "apart"]
