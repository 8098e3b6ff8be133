"""What a worker's exit status or reported error says about the kernel that it tried."""

from __future__ import annotations

import signal

from polytile.problem import Outcome

ENDINGS: dict[int, tuple[Outcome, str]] = {
    signal.SIGSEGV: (Outcome.CRASHED, "segmentation fault"),
    signal.SIGBUS: (Outcome.CRASHED, "bus error"),
    signal.SIGABRT: (Outcome.CRASHED, "aborted"),
    signal.SIGFPE: (Outcome.CRASHED, "arithmetic fault, such as an integer division by zero"),
    signal.SIGILL: (Outcome.CRASHED, "illegal instruction"),
    signal.SIGKILL: (Outcome.OUT_OF_MEMORY, "ended by the system, as it does when memory runs out"),
    signal.SIGXCPU: (Outcome.TIMEOUT, "used the processor without end"),
    signal.SIGALRM: (Outcome.TIMEOUT, "did not come to an end"),
}
"""What the signal that ended a worker says about the kernel."""

LAST_WORDS: tuple[tuple[str, Outcome], ...] = (
    ("bad_alloc", Outcome.OUT_OF_MEMORY),
    ("out of memory", Outcome.OUT_OF_MEMORY),
    ("libgomp: Thread creation failed", Outcome.OUT_OF_MEMORY),
)
"""What a process that aborts may have written on stderr, and what it means."""

ERROR_NAMES: dict[str, Outcome] = {"MemoryError": Outcome.OUT_OF_MEMORY, "TimeoutError": Outcome.TIMEOUT}
"""What the class of an error says about how the kernel ended."""

ERRORS: tuple[tuple[str, Outcome], ...] = (
    ("out of memory", Outcome.OUT_OF_MEMORY),
    ("not enough memory", Outcome.OUT_OF_MEMORY),
    ("cannot allocate memory", Outcome.OUT_OF_MEMORY),
    ("illegal memory access", Outcome.CRASHED),
    ("illegal address", Outcome.CRASHED),
    ("misaligned address", Outcome.CRASHED),
    ("illegal instruction", Outcome.CRASHED),
    ("unspecified launch failure", Outcome.CRASHED),
    ("device-side assert", Outcome.CRASHED),
    ("launch timed out", Outcome.TIMEOUT),
)
"""Words in the message of an error, and how the kernel ended then. All but the first three poison a GPU's context: the worker
that raised such an error is not used again."""


class Failure(Exception):
    """A kernel did not come to an end as it should: how, and in which words."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome, self.detail = outcome, detail


def raised(name: str, message: str) -> Failure:
    """The Failure for an error of the class `name` that the worker caught and reported."""
    detail = f"{name}: {message}"
    return Failure(ERROR_NAMES.get(name) or _meaning(detail, ERRORS, Outcome.RAISED), detail)


def ended(status: int | None, words: str) -> Failure:
    """The Failure for a process that has ended, from its exit status as subprocess gives it and its last words on stderr."""
    if status is None or status >= 0:
        outcome, what = Outcome.CRASHED, f"ended its process with status {status}"
    else:
        outcome, what = ENDINGS.get(-status, (Outcome.CRASHED, f"ended by signal {-status}"))
    last = words.splitlines()[-1] if words else ""
    return Failure(_meaning(words, LAST_WORDS, outcome), f"{what}{f': {last}' if last else ''}")


def _meaning(text: str, table: tuple[tuple[str, Outcome], ...], otherwise: Outcome) -> Outcome:
    low = text.lower()
    return next((outcome for words, outcome in table if words.lower() in low), otherwise)
