"""`polytile.save_plan`: pins what this process has decided, for others to follow with the option `plan`.

It imports the rest of the package when it runs, because `import polytile` imports this file.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from polytile.errors import PlanError

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel
    from polytile.dispatch.planfile import Key, Pinned

log = logging.getLogger("polytile")


def save_plan(path: str | os.PathLike[str]) -> int:
    """Writes every decision of the programs compiled in this process to a plan file.

    `options={"plan": path}` then makes any process run the same kernels at the same sizes, without measuring. On the same machine
    results are the same bit for bit. Run the program at all sizes that matter first: a plan covers the regimes that were met, and
    no others (option `plan_missing`). If two programs decided differently about one kernel, or two tuners of it did, the
    younger one's decision is kept, with a warning.

    Parameters
    ----------
    path
        The file to write; an existing one is replaced.

    Returns
    -------
    The number of decisions written.

    Raises
    ------
    PlanError
        Nothing has been decided yet, or the file cannot be written.
    """
    from polytile.dispatch.planfile import Plan, here, pinned_by

    decided: dict[Key, Pinned] = {}
    for multikernel in _oldest_first():
        for pinned in pinned_by(multikernel):
            _tell_of_conflict(decided.get(pinned.key), pinned)
            decided[pinned.key] = pinned
    if not decided:
        raise PlanError(
            f"there is nothing to write to {os.fspath(path)}: no compiled program has chosen a kernel yet. "
            "Call one that has generated kernels once at each size that matters, then save the plan."
        )
    Plan(tuple(decided.values()), here()).write(path)
    return len(decided)


def _oldest_first() -> list[MultiKernel]:
    """Every living MultiKernel, oldest first: those of no program by name and age, then each program's."""
    from polytile.compiler import programs as compiler
    from polytile.dispatch.registry import alive

    of_programs = [kernel for program in compiler.compiled_programs() for kernel in program.multikernels]
    last = {kernel: place for place, kernel in enumerate(of_programs)}
    return sorted(dict.fromkeys([*alive(), *of_programs]), key=lambda kernel: last.get(kernel, -1))


def _tell_of_conflict(before: Pinned | None, after: Pinned) -> None:
    if before is not None and (before.candidate, before.source) != (after.candidate, after.source):
        log.warning(
            "Two programs run kernel %r differently for %s: %r and %r; the plan keeps the latter.",
            after.kernel,
            after.regime,
            before.candidate,
            after.candidate,
        )
