"""A kernel with candidates of its own that a candidate calls: an epilogue, a prologue, a part of a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from polytile.candidates.candidate import Candidate


class Spec(Protocol):
    """What has to be known of the kernel: the names of its integers, in the order of a call."""

    @property
    def size_names(self) -> tuple[str, ...]: ...


class InnerKernel(Protocol):
    """What a candidate needs of a MultiKernel."""

    @property
    def spec(self) -> Spec: ...

    @property
    def candidates(self) -> Sequence[Candidate]:
        """In canonical order."""
        ...

    def __call__(self, *args: object) -> None:
        """Runs the kernel on its flat arguments: tensors, then integers."""
        ...


def best_cost(kernel: InnerKernel, sizes: Mapping[str, int], default: float = 0.0) -> float:
    """Predicted seconds of the kernel's best candidate at these sizes; `default` where none can run."""
    return min((candidate.cost(sizes) for candidate in kernel.candidates if candidate.valid(sizes)), default=default)


def prepare_first(kernel: InnerKernel) -> None:
    """Starts compiling the kernel's first candidate."""
    for candidate in kernel.candidates[:1]:
        candidate.prepare()
