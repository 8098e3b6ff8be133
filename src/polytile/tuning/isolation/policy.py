"""Which candidates are tried in a process of their own before they run in the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from polytile import options
from polytile.candidates.candidate import READY_MADE, Candidate
from polytile.problem import Outcome, sizes_text
from polytile.store import Summary

TRUSTED = (*READY_MADE, "reference")
"""Origins whose kernels are never isolated: library calls and the interpreter are what eager itself runs."""


def isolated(candidates: Iterable[Candidate], proven: Callable[[str], bool]) -> frozenset[str]:
    """Names of the candidates to try in isolation, as the option `isolation` says. `proven(source_hash)` says whether a kernel
    of this source has finished on this machine before, and never failed to. A candidate that is `interpreted` is run by an
    interpreter, and none of its code by the machine. What the main script defines (`in_main_script`), another process could
    import only by running the script.

    Under "untrusted", a source is isolated the first time. At later sizes it is trusted, since a kernel that passed the gate
    once rarely crashes, and a copy of all arguments for every problem is expensive.
    """
    mode = options.get("isolation")
    if mode == "never":
        return frozenset()
    others = [c for c in candidates if c.origin not in TRUSTED and not c.interpreted]
    if mode == "always":
        return frozenset(c.name for c in others)
    return frozenset(c.name for c in others if not c.in_main_script and not proven(c.source_hash))


def deadly(
    candidates: Iterable[Candidate], sizes: Mapping[str, int], died: Mapping[str, Sequence[Summary]]
) -> Iterator[tuple[Candidate, Outcome, str]]:
    """The candidates whose source has crashed before, at any sizes, or did not finish at sizes none of which was larger; with
    how and where. They are not tried again: an edited source has another hash in `died` (Store.died)."""
    for candidate in candidates if died else ():
        for one in died.get(candidate.source_hash, ()):
            slow = one.outcome is Outcome.TIMEOUT and one.size.keys() == sizes.keys()
            if one.outcome is Outcome.CRASHED or (slow and all(one.size[name] <= sizes[name] for name in sizes)):
                yield candidate, one.outcome, f"{one.outcome.value} at {sizes_text(one.size.items())}, on record"
                break
