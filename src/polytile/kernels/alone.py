"""The library's operator as a candidate of a loop that is that operator (`ir/calls.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from polytile.errors import IRError
from polytile.ir.calls import expressions, mapped
from polytile.ir.program import View
from polytile.kernels.candidate import Candidate, PythonEntry
from polytile.kernels.canonical import LoopKernel
from polytile.problem import Config, digest
from polytile.runtime.formula import encode, evaluate

CALL = 3e-6
"""Seconds of a call from the dispatcher, by Python, to an operator."""

COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)
"""Operators whose forms that write into a given tensor copy twice."""

MOST_SHAPES = 256
"""Shapes of which the sizes and strides of arguments are kept."""


@dataclass(frozen=True)
class _Look:
    """A view of tensor number `at` of a call; -1: of a tensor of which only the sizes matter. `whole`: the tensor itself,
    unless it comes flat, as tensors do that are made for tuning."""

    at: int
    whole: bool
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.at < 0:
            return torch.zeros((), dtype=self.dtype, device=tensors[0].device).expand(self.sizes)
        tensor = tensors[self.at]
        if self.whole and tensor.dim() == len(self.sizes):
            return tensor
        if self.offset == 0 and tensor.shape == self.sizes and tensor.stride() == self.strides:
            return tensor
        return tensor.as_strided(self.sizes, self.strides, tensor.storage_offset() + self.offset)


class AloneLibrary:
    """The operator, into the loop's outputs. `recordable`: on a GPU, see PythonEntry."""

    name = "aten"
    origin = "library"
    config = Config()
    source_path = ""

    def __init__(self, kernel: LoopKernel, generated: Sequence[Candidate], recordable: bool = False) -> None:
        assert kernel.library is not None
        self.kernel, self.generated, self.recordable = kernel, generated, recordable
        self.library = kernel.library
        self._into, self._outs = into_form(self.library.target)
        self._tensors = {tensor.name: k for k, tensor in enumerate(kernel.tensors)}
        places = {symbol: k for k, symbol in enumerate(kernel.symbols)}
        self._formulas = {e: encode(e, places) for e in dict.fromkeys(expressions(self.library))}
        self._count = len(kernel.tensors)
        self._bound: dict[tuple[int, ...], Callable[[Sequence[Any]], None]] = {}

    @cached_property
    def source_hash(self) -> str:
        return digest(f"aten {torch.__version__} {self.kernel.text}")

    def valid(self, size: Mapping[str, int]) -> bool:
        return True

    def cost(self, size: Mapping[str, int]) -> float:
        """As the best generated loop, and the call: where nothing may be measured, what is generated runs."""
        return CALL + min((candidate.cost(size) for candidate in self.generated if candidate.valid(size)), default=0.0)

    def prepare(self) -> None:
        """Nothing to make."""

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call, self.recordable)

    def _call(self, *args: Any) -> None:
        ints = args[self._count :]
        bound = self._bound.get(ints)
        if bound is None:
            if len(self._bound) >= MOST_SHAPES:
                self._bound.clear()
            bound = self._bound[ints] = self._at(ints)
        bound(args)

    def _at(self, ints: Sequence[int]) -> Callable[[Sequence[Any]], None]:
        """The call at these sizes, which takes the tensors."""
        values = {e: evaluate(formula, ints) for e, formula in self._formulas.items()}

        def look(view: View) -> _Look:
            extents, strides = (tuple(values[e] for e in group) for group in (view.sizes, view.strides))
            at, whole = self._tensors.get(view.buffer, -1), view.buffer in self.library.whole
            return _Look(at, whole, view.dtype, extents, strides, values[view.offset])

        args, kwargs = mapped((self.library.args, self.library.kwargs), look, lambda e: values[e])
        outputs = [None if view is None else look(view) for view in self.library.outputs]
        given = _filler(args)
        if self.library.target in COPIES and outputs[0] is not None:
            first = outputs[0]
            return _Bound(torch.Tensor.copy_, lambda tensors: [first.of(tensors), given(tensors)[0]], {}, {})
        outs = {name: o for name, o in zip(self._outs, outputs, strict=False) if o is not None}
        if self._into is not None and len(outs) == len(outputs):
            return _Bound(self._into._op, given, dict(kwargs), outs)
        if not outputs:
            return _Bound(self.library.target._op, given, dict(kwargs), {})
        return _Copied(self.library.target._op, given, dict(kwargs), outputs)


@dataclass(frozen=True)
class _Bound:
    """A call of `target`, which writes into `outs` or changes its arguments."""

    target: Callable[..., Any]
    given: Callable[[Sequence[Any]], list[Any]]
    named: dict[str, Any]
    outs: dict[str, _Look]

    def __call__(self, tensors: Sequence[Any]) -> None:
        outs = {name: look.of(tensors) for name, look in self.outs.items()}
        self.target(*self.given(tensors), **self.named, **outs)


@dataclass(frozen=True)
class _Copied:
    """A call of `target`, whose results are copied to where they belong."""

    target: Callable[..., Any]
    given: Callable[[Sequence[Any]], list[Any]]
    named: dict[str, Any]
    outputs: list[_Look | None]

    def __call__(self, tensors: Sequence[Any]) -> None:
        results = self.target(*self.given(tensors), **self.named)
        for look, result in zip(self.outputs, results if isinstance(results, tuple | list) else (results,), strict=False):
            if look is not None:
                look.of(tensors).copy_(result)


def _filler(args: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """`args` as a function of the tensors that stand in them, in lists too."""
    looks = [(k, arg) for k, arg in enumerate(args) if isinstance(arg, _Look)]
    lists = [(k, _filler(arg)) for k, arg in enumerate(args) if isinstance(arg, tuple | list)]

    def filled(tensors: Sequence[Any]) -> list[Any]:
        given = list(args)
        for k, look in looks:
            given[k] = look.of(tensors)
        for k, inner in lists:
            given[k] = inner(tensors)
        return given

    return filled


def into_form(target: Any) -> tuple[Any, tuple[str, ...]]:
    """The overload of `target` that writes its results into given tensors, and the names of these; None without one."""
    own = _signature(target)
    for name in target.overloadpacket.overloads():
        other = getattr(target.overloadpacket, name)
        outs = tuple(a.name for a in other._schema.arguments if a.is_out)
        if outs and _signature(other) == own:
            return other, outs
    return None, ()


def _signature(target: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in target._schema.arguments if not a.is_out]


def library_of(
    kernel: LoopKernel, generated: Sequence[Candidate], recordable: bool = False
) -> tuple[AloneLibrary, ...]:
    """The candidate beside those `generated`, if the kernel is one operator and all numbers among its arguments can be computed
    in a call."""
    if kernel.library is None:
        return ()
    try:
        return (AloneLibrary(kernel, generated, recordable),)
    except IRError:
        return ()


__all__ = ["AloneLibrary", "into_form", "library_of"]
