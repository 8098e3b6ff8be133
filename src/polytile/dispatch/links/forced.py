"""Candidates named by the option `force` or picked by a replaced clock.

`force` is a comma-separated list of patterns with shell wildcards: CANDIDATE, for every kernel that has such a
candidate, or KERNEL=CANDIDATE for the kernels of that name. The first pattern that fits decides; of several
candidates that fit it, the first in canonical order.
"""

from __future__ import annotations

import difflib
import fnmatch
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from polytile import options
from polytile.dispatch.links import measured
from polytile.dispatch.request import Answer, Request
from polytile.errors import OptionError
from polytile.tuning import measure

log = logging.getLogger("polytile.dispatch")


def choose(request: Request) -> Answer | None:
    """The forced candidate; the fastest by the replaced clock; or a note that what was forced cannot run here."""
    note = None
    for kernel, pattern in patterns(options.get("force")):
        if kernel and not fnmatch.fnmatchcase(request.spec.name, kernel):
            continue
        for candidate in request.alive:
            if fnmatch.fnmatchcase(candidate.name, pattern):
                return Answer(candidate, f"forced by {pattern!r}")
        if kernel:
            note = Answer(None, f"{pattern!r} is forced but cannot run here")
    if measure.replaced() and request.args is not None:
        answer = measured.trial(request, request.alive, remember=False)
        if answer.candidate is not None:
            return Answer(answer.candidate, "fastest by a replaced clock", answer.scores, tried=answer.tried)
    return note


def patterns(text: str) -> Iterator[tuple[str, str]]:
    """(kernel pattern or "", candidate pattern) for each entry of the option; raises OptionError for one without a
    candidate."""
    for entry in options.parts(text):
        kernel, candidate = (part.strip() for part in entry.split("=", 1)) if "=" in entry else ("", entry)
        if not candidate:
            raise OptionError(f"option 'force' has the entry {entry!r}; write KERNEL=CANDIDATE or CANDIDATE.")
        yield kernel, candidate


def check(kernel: str, candidates: tuple[str, ...]) -> None:
    """Raises OptionError where the option forces `kernel`, by a name without wildcards, to a candidate it does not
    have."""
    for named, pattern in patterns(options.get("force")):
        if named == kernel and not any(fnmatch.fnmatchcase(candidate, pattern) for candidate in candidates):
            raise OptionError(
                f"option 'force' asks for candidate {pattern!r} of kernel {kernel!r}, which has none of that name; "
                f"it has {', '.join(map(repr, candidates))}."
            )


def warn_of_idle(kernels_so_far: Callable[[], Iterable[tuple[str, Sequence[str]]]]) -> None:
    """Tells of entries of the option that fit no candidate of any of the `kernels_so_far` (name, names of its candidates):
    misspelt, or meant for a kernel still to come."""
    forced = tuple(patterns(options.get("force")))
    kernels = tuple(kernels_so_far()) if forced else ()
    for kernel, pattern in forced:
        known = dict.fromkeys(c for name, names in kernels if fnmatch.fnmatchcase(name, kernel or "*") for c in names)
        if not any(fnmatch.fnmatchcase(candidate, pattern) for candidate in known):
            entry = f"{kernel}={pattern}" if kernel else pattern
            nearest = difflib.get_close_matches(pattern, known, n=1)
            advice = f"did you mean {nearest[0]!r}?" if nearest else "polytile.explain lists kernels and what runs them."
            log.warning("Option 'force' is %r, but no kernel made so far has such a candidate; %s", entry, advice)
