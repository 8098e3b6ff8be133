"""The two kinds of entry through which a candidate's kernel is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile.errors import IndexOutOfRange
from polytile.runtime.cuda.launch import Plan
from polytile.runtime.cuda.products import AtenPlan


@dataclass(frozen=True)
class NativeEntry:
    """A loaded kernel: `long kernel(void* const* ptrs, const long* sizes, long threads)` at `address`.

    `keep` holds whatever must stay alive while the address is in use: the shared library. For a GPU kernel, `threads` is the
    address of the plan by which the launcher at `address` launches it, and `keep` is the plan. `wait` waits until its launches
    are done and returns the number of the run-time check that failed, or 0; None: the kernel is done when its call returns.
    `otherwise` is a Python callable, with the kernel's own arguments, for calls that the kernel declines; None: it declines none.
    """

    address: int
    threads: int = 1
    keep: Any = field(default=None, compare=False, repr=False)
    wait: Callable[[], int] | None = field(default=None, compare=False, repr=False)
    otherwise: Callable[..., None] | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of_plan(plan: Plan) -> NativeEntry:
        """The entry that launches a GPU kernel by `plan`."""
        return NativeEntry(plan.address, plan.handle, plan, plan.synchronise)

    @staticmethod
    def of_product(plan: AtenPlan, otherwise: Callable[..., None]) -> NativeEntry:
        """The entry that has a library multiply by `plan`."""
        return NativeEntry(plan.address, plan.handle, plan, otherwise=otherwise)

    def synchronise(self) -> None:
        """Waits until the kernel's launches on a GPU are done. Raises IndexOutOfRange if a run-time check failed there."""
        code = self.wait() if self.wait is not None else 0
        if code:
            raise IndexOutOfRange(f"run-time check {code} of the kernel failed: an index is out of range.")


@dataclass(frozen=True)
class PythonEntry:
    """A Python callable that takes the kernel's own flat arguments: tensors first, then integers. What it returns is dropped.

    `recordable`: once it has run for these sizes, all it does is start work on a GPU's current stream, so a CUDA graph can
    record it. `timer`, if any, takes the time of calls in place of polytile's own: (entry, arguments, repeats) → seconds.

    `results`, if any, takes the same arguments but returns what `call` writes to the arguments numbered `outputs`, which may be
    None: new tensors that lie in their storage, which nobody else has, as the arguments would in theirs (`runtime/results.py`). A
    program whose memory for these is untouched takes the tensors in its place (`runtime/results.c`).
    """

    call: Callable[..., Any]
    recordable: bool = False
    timer: Any = None
    results: Callable[..., Sequence[torch.Tensor]] | None = None
    outputs: tuple[int, ...] = ()

    @property
    def timed(self) -> PythonEntry:
        """The entry whose calls say how long this one's take in a program: without copies of results."""
        return self if self.results is None else PythonEntry(self.results, self.recordable, self.timer)

    def synchronise(self) -> None:
        """Nothing: what a callable finds wrong, it raises in the call."""


Entry = NativeEntry | PythonEntry
