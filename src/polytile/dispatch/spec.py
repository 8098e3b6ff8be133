"""What a MultiKernel computes and takes, but not how: its arguments, what its choice depends on, and its reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from polytile.candidates.roundings import Rounded
from polytile.dispatch.keys import Condition, Keys
from polytile.dispatch.plan_conditions import team
from polytile.errors import HintError
from polytile.facts import Fact
from polytile.ir.buffer import CPU as CPU_DEVICE
from polytile.problem import Problem, sizes_text
from polytile.runtime import device
from polytile.runtime.arguments import CPU, CUDA
from polytile.tuning.sample import Sampler
from polytile.tuning.tolerance import coarseness

ROLES = ("in", "out", "inout", "scratch")
"""What a kernel does with a tensor: only reads it; writes all of it and reads nothing of it; both; uses it as it
likes."""


@dataclass(frozen=True)
class ArgInfo:
    """One tensor argument: its name in messages, its element type, and its role, one of ROLES; what a kernel rounds on its way
    there."""

    name: str
    dtype: torch.dtype
    role: str = "in"
    rounded: Rounded | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"argument {self.name!r} has the role {self.role!r}; roles are {', '.join(ROLES)}.")


@dataclass(frozen=True)
class KernelSpec:
    """A kernel as its callers see it. All sub-kernels of a MultiKernel share one.

    The kernel is called with `args` tensors (None where an optional one is absent) and then one int for each of `size_names`.

    name            what it is called in messages, plans and the option `force`
    family, kernel  of its Problems: what kind of work, and the digest of the work itself
    size_codes      the regime code of each int (runtime/regime.py): what has the code 0 takes no part in any choice, so an int
                    derived from others should have it
    tensor_codes    the same of each tensor; empty: nothing about tensors matters
    layouts         what else is known of the arguments when the kernel is made, and tells problems apart
    reduction       names of the sizes (or numbers) whose product is the number of terms that an output element sums
    reduction_hint  how the reduction runs through memory: "inner", "outer" or ""
    source_ops      the operators that it came from, for people
    checks          the sentences for run-time checks 1, 2, ...
    conditions      what else the regime and the problem are told apart by: a fact each, and the formula that says when it holds
    target          where the tensors are and the kernel runs
    device          the fingerprint of that device; empty: this machine's processor
    reference       `reference(*args)` is called like the kernel, with float64 in place of other floating types, and writes the
                    out and inout tensors; it must be right, not fast
    wide            whether the reference takes float64; without it runs at the arguments' own precision alone
    reported        (candidate, outcome) of the failures that were reported; kernels with one owner share it
    sampler         what stands in for the reference where all results would take too long or too much memory (tuning/sample.py)
    make_args       `make_args(sizes)` makes the flat arguments for given sizes by name, some of which may be missing where others
                    imply them; without it nothing can be tuned ahead of a call
    """

    name: str
    family: str
    kernel: str
    args: tuple[ArgInfo, ...]
    size_names: tuple[str, ...]
    size_codes: tuple[int, ...]
    tensor_codes: tuple[int, ...] = ()
    layouts: tuple[Fact, ...] = ()
    reduction: tuple[str | int, ...] = ()
    reduction_hint: str = ""
    source_ops: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    target: torch.device = CPU_DEVICE
    device: str = ""
    reference: Callable[..., None] | None = field(default=None, compare=False, repr=False)
    make_args: Callable[[Mapping[str, int]], Sequence[Any]] | None = field(default=None, compare=False, repr=False)
    sampler: Sampler | None = field(default=None, compare=False, repr=False)
    wide: bool = True
    reported: set[tuple[str, str]] = field(default_factory=set, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.size_names) != len(self.size_codes):
            raise ValueError(
                f"kernel {self.name!r} has {len(self.size_names)} integer arguments and {len(self.size_codes)} regime "
                "codes; each integer needs one."
            )
        if self.tensor_codes and len(self.tensor_codes) != len(self.args):
            raise ValueError(
                f"kernel {self.name!r} has {len(self.args)} tensor arguments and {len(self.tensor_codes)} tensor codes; "
                "give one for each or none at all."
            )

    @property
    def label(self) -> str:
        """What torch's profiler shows: the name, and the operators that the kernel came from."""
        return f"{self.name} ({', '.join(self.source_ops)})" if self.source_ops else self.name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(arg.name for arg in self.args)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(arg.role for arg in self.args)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The arguments' element types, as "float32"."""
        return tuple(str(arg.dtype).removeprefix("torch.") for arg in self.args)

    @property
    def device_type(self) -> int:
        """torch's number for the type of `target`."""
        return CUDA if self.target.type == "cuda" else CPU

    def on_its_gpu(self) -> KernelSpec:
        """The spec with the fingerprint of the GPU that `target` is; itself where that is no GPU."""
        if self.target.type != "cuda":
            return self
        from polytile.runtime.cuda.device import fingerprint  # what a GPU needs is imported where there is one

        return replace(self, device=fingerprint(self.target.index or 0))

    @cached_property
    def keys(self) -> Keys:
        """The facts that distinguish the regimes of this kernel."""
        return Keys(self.size_names, self.size_codes, self.names, self.tensor_codes, self.conditions)

    def arguments_for(self, hint: Mapping[str, int]) -> tuple[Any, ...]:
        """Flat arguments at these sizes. Raises ValueError where none can be made up, HintError where not at these sizes."""
        if self.make_args is None:
            raise ValueError(f"kernel {self.name!r} cannot make arguments for hinted sizes; call it instead.")
        try:
            return tuple(self.make_args(hint))
        except (RuntimeError, TypeError) as error:  # torch's: memory does not suffice, or 64 bits do not for the element count
            why = str(error).partition("\n")[0].rstrip(".")
            at = sizes_text(hint.items())
            raise HintError(f"kernel {self.name!r} cannot be tried at the hinted {at}: {why}.") from None

    def tensors_of(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The tensors among flat arguments."""
        return tuple(args[: len(self.args)])

    def ints_of(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The integers among flat arguments."""
        return tuple(args[len(self.args) :])

    def sizes(self, ints: Sequence[int]) -> dict[str, int]:
        """Every integer argument by name."""
        return dict(zip(self.size_names, ints, strict=True))

    def problem(self, ints: Sequence[int], pointers: Sequence[int] = ()) -> Problem:
        """The Problem of a call with these integers: what its choice may depend on and nothing else.

        `layouts` ends with the facts of the call and, on a CPU, the number of threads that a kernel may use, so that problems
        which differ in sizes alone are in the same kind of regime.
        """
        return Problem(
            self.family,
            self.kernel,
            self.keys.deciding(ints),
            self.dtypes,
            (*self.layouts, *self.keys.facts_of_call(ints, pointers), *team(self.target.type)),
            self.device or device.fingerprint(),
        )

    def reduction_length(self, ints: Sequence[int]) -> int:
        """Number of terms that one output element sums."""
        return self._product(self.reduction, ints)

    def coarse(self, ints: Sequence[int]) -> tuple[float, ...]:
        """How far each tensor may be off for what is rounded on its way, relative as in `tuning.tolerance`."""
        ways = [arg.rounded for arg in self.args]
        return tuple(coarseness(way.dtype, self._product(way.terms, ints)) if way is not None else 0.0 for way in ways)

    def _product(self, terms: Sequence[str | int], ints: Sequence[int]) -> int:
        sizes = self.sizes(ints)
        return math.prod(sizes[part] if isinstance(part, str) else part for part in terms)
