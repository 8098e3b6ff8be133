"""What can run a Problem: the Candidate protocol and the two kinds of entry that a ready candidate offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from polytile.problem import Config


@dataclass(frozen=True)
class NativeEntry:
    """A loaded kernel: `long kernel(void* const* ptrs, const long* sizes, long threads)` at `address`.

    `keep` holds whatever must stay alive while the address is in use (the shared library).
    """

    address: int
    threads: int = 1
    keep: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class PythonEntry:
    """A Python callable that takes the kernel's own flat arguments: tensors first, then integers. Returns None."""

    call: Callable[..., None]


Entry = NativeEntry | PythonEntry


class Candidate(Protocol):
    """Something that can run a Problem. Candidates of a MultiKernel stand in canonical order: ties go to the first."""

    @property
    def name(self) -> str:
        """Short, stable, unique within its MultiKernel: "persistent t2", "gemm 6x64 t1", "aten"."""
        ...

    @property
    def origin(self) -> str:
        """The source it comes from: "cpp", "library", ..."""
        ...

    @property
    def config(self) -> Config: ...

    @property
    def source_hash(self) -> str: ...

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether it can run at these concrete sizes."""
        ...

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Analytical prior: predicted seconds of one call."""
        ...

    def prepare(self) -> None:
        """Starts making it in the background; returns at once; may be called many times."""
        ...

    def entry(self) -> Entry:
        """The runnable form; waits until it is made. Raises CompileFailed or CompilerMissing."""
        ...
