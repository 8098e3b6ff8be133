"""Kernels with candidates of their own that a candidate calls: an epilogue, a prologue, the parts of a loop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.problem import Config


class Spec(Protocol):
    """What a caller must know about the kernel: the names of its integers, in the order of a call."""

    @property
    def size_names(self) -> tuple[str, ...]: ...


class InnerKernel(Protocol):
    """The part of a MultiKernel that a candidate needs."""

    @property
    def spec(self) -> Spec: ...

    @property
    def candidates(self) -> Sequence[Candidate]:
        """In canonical order."""
        ...

    @property
    def dispatch(self) -> Callable[..., None] | None:
        """What a call goes to: a dispatcher, which C can call too, or a function; None: the kernel itself."""
        ...

    def __call__(self, *args: object) -> None:
        """Runs the kernel on its flat arguments: tensors, then integers."""
        ...


def best_cost(kernel: InnerKernel, sizes: Mapping[str, int], default: float = 0.0) -> float:
    """Predicted seconds of the kernel's best candidate at these sizes; `default` if none can run."""
    return min((candidate.cost(sizes) for candidate in kernel.candidates if candidate.valid(sizes)), default=default)


def prepare_first(kernel: InnerKernel) -> None:
    """Starts compiling the kernel's first candidate."""
    for candidate in kernel.candidates[:1]:
        candidate.prepare()


class Composed(Candidate):
    """A candidate that runs inner kernels in sequence, each by the best of its own candidates. It is always measured, like a
    library's kernel, so that a slower fused kernel is never chosen."""

    origin = "library"
    config = Config()
    inner: Sequence[InnerKernel] = ()
    """The inner kernels whose first candidates compile beside the other candidates of this kernel."""

    def prepare(self) -> None:
        for kernel in self.inner:
            prepare_first(kernel)

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call, recordable=True)

    @abstractmethod
    def _call(self, *args: Any) -> None:
        """Runs all of them on the flat arguments of the whole."""
