"""The base class of all candidates: whatever can run a Problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polytile.candidates.entries import Entry
from polytile.candidates.handles import Handle, Portable
from polytile.problem import Config, Resources, Scalar
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.candidates.inner_kernel import InnerKernel
    from polytile.runtime.cuda.device import DeviceFacts

READY_MADE = ("library", "sdpa", "unfused", "padding", "split_k", "cublaslt", "cudnn")
"""Origins whose candidates need no generated or compiled code: library calls."""


NOTHING = Facts(wide=True)
"""The facts that hold for any call."""


class Candidate(ABC):
    """Something that can run a Problem. A MultiKernel's candidates are in canonical order: of those predicted alike, the first is
    chosen.

    A subclass sets `name`, `origin` and `config`, and defines `source_hash`, `cost` and `entry`. Everything else has a default.
    Sizes are a kernel's integers by name: lengths and strides, in elements. `entry` and `handle` may raise CompileFailed,
    CompilerMissing or ResourcesExceeded; the other methods raise nothing.
    """

    name: str
    """Short, stable, unique within its MultiKernel: "persistent t2", "gemm 6x64 t1", "aten"."""

    origin: str
    """The source that it comes from: "cpp", "triton", "library", "user", ..."""

    config: Config
    """The tunable numbers that distinguish it from others of its kind; an empty Config if it has none."""

    recipe: str = ""
    """What determines its source, known before the source is generated: candidates with equal name, config and recipe have
    equal sources. "": `source_hash` serves instead."""

    declines: str = ""
    """Why its kernel may decline calls, which nobody knows before: a sentence that goes on from the candidate's name. "": it
    declines none, or its entry's `otherwise` runs them."""

    hard_limits: bool = False
    """Whether running it at sizes that are not `valid` does harm, so that it must be valid all over a regime."""

    # what it does, the required part first ---------------------------------------------------------------------------

    @property
    @abstractmethod
    def source_hash(self) -> str:
        """Digest of its source and of whatever else decides what it runs: measurements of another hash do not count."""

    @abstractmethod
    def cost(self, sizes: Mapping[str, int]) -> float:
        """Analytical prior: predicted seconds of one call at these sizes."""

    @abstractmethod
    def entry(self) -> Entry:
        """The runnable form; waits until it is compiled."""

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether it can run at these sizes. Default: at all."""
        return True

    def prepare(self) -> None:  # noqa: B027  # a default, which most library calls have
        """Starts compiling in the background and returns at once; may be called many times. Default: there is nothing to
        compile."""

    def call_off(self) -> None:  # noqa: B027  # a default, which most library calls have
        """Has no compiler begin what `prepare` asked for, if nobody else waits for it; `prepare` may ask again. Default: there
        is nothing to compile."""

    def ready(self) -> bool:
        """Whether `entry` returns at once; starts nothing. Default: yes."""
        return True

    def when_ready(self, action: Callable[[], None]) -> None:
        """Has `action` called, in any thread, once what was prepared is compiled, or has failed. Default: now."""
        action()

    def failed(self) -> bool:
        """Whether compiling it is known to have failed. Default: no."""
        return False

    def handle(self) -> Handle | None:
        """How another process obtains the kernel (tuning/isolation). Does not run the kernel. Default: None; the first run is
        then in this process."""
        return None

    def handle_for(self, args: Sequence[Any]) -> Handle | None:
        """The same, to run it with these arguments. Raises Unavailable (tuning/isolation/memory.py) where that cannot be, with
        the reason. Default: the handle for all arguments."""
        return self.handle()

    @property
    def right_anywhere(self) -> bool:
        """Whether it is right, or declines the call, at all sizes at which its facts hold, `valid` or not. Default: no."""
        return False

    @property
    def is_portable(self) -> bool:
        """Whether it has a form that runs without Python and torch, in packages. Default: no."""
        return False

    def portable(self) -> Portable | None:
        """The form that runs without Python and torch; waits until it is compiled. Default: None."""
        return None

    def prepare_for(self, device: DeviceFacts) -> Sequence[Any]:
        """Starts compiling the form for GPUs of another architecture; what it waits for. Default: nothing."""
        return ()

    def portable_to(self, device: DeviceFacts) -> Portable | None:
        """The form for GPUs of another architecture; waits until it is compiled. Default: the same form serves all."""
        return self.portable()

    def inner_calls(self, ints: Sequence[int]) -> Iterable[tuple[InnerKernel, Sequence[int]]]:
        """Kernels with candidates of their own that a call with these integers runs, with the integers of their calls; strides
        of memory that it makes itself are dense. Default: none."""
        return ()

    # its forms: each has the name, config and source hash of the candidate itself ------------------------------------

    def specialise(self, facts: Facts) -> Candidate:
        """The form for regimes in which `facts` hold. Default: itself."""
        return self

    @property
    def facts(self) -> Facts:
        """What it assumes about the arguments of a call. Default: nothing."""
        return NOTHING

    def pinned_to(self, sizes: Mapping[str, int]) -> Candidate:
        """The form for a regime that chose it by its time at these sizes. Default: itself."""
        return self

    @property
    def steady(self) -> bool:
        """Whether it runs the same code at sizes close by. Default: yes."""
        return True

    @property
    def foreseen(self) -> bool:
        """Whether `cost` says how its time grows with the sizes. Default: yes."""
        return True

    @property
    def per_size(self) -> bool:
        """Whether it builds something for each combination of sizes, in the first call there. Its cost is that of the first call,
        and it is chosen for exact sizes alone. Default: no."""
        return False

    # what is known of it ---------------------------------------------------------------------------------------------

    @property
    def traits(self) -> tuple[tuple[str, Scalar], ...]:
        """What it has in common with candidates whose predictions are wrong in the same way. Default: nothing."""
        return ()

    @property
    def interpreted(self) -> bool:
        """Whether an interpreter runs it, so that none of its code can harm the process. Default: no."""
        return False

    @property
    def in_main_script(self) -> bool:
        """Whether the main script defines it: another process could import it only by running the script. Default: no."""
        return False

    @property
    def source_path(self) -> str:
        """Where its source can be read; "", the default: nowhere."""
        return ""

    @property
    def resources(self) -> Resources | None:
        """What its compiler reports of the kernel; None, the default: it reports nothing."""
        return None

    @property
    def compile_seconds(self) -> float | None:
        """Seconds that compiling it took in this process; None, the default: unknown."""
        return None

    @property
    def operators(self) -> tuple[str, ...]:
        """The library's operators that it calls in place of a loop, for the counters. Default: none."""
        return ()

    def terms(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """What `cost` is made of at these sizes, by name, for models that learn from measurements. Names that end in "_s" are
        seconds, those that begin with "work." are facts of the problem rather than of the candidate. Default: nothing."""
        return {}

    def describe(self, sizes: Mapping[str, int]) -> dict[str, Scalar]:
        """What it is at these sizes, for the record of a measurement. Default: nothing to add."""
        return {}
