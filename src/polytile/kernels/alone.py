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
from polytile.kernels.candidate import PythonEntry
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
    """A view of tensor number `at` of a call; -1: of a tensor of which only the sizes matter."""

    at: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.at < 0:
            return torch.zeros((), dtype=self.dtype).expand(self.sizes)
        tensor = tensors[self.at]
        if self.offset == 0 and tensor.shape == self.sizes and tensor.stride() == self.strides:
            return tensor
        return tensor.as_strided(self.sizes, self.strides, tensor.storage_offset() + self.offset)


class AloneLibrary:
    """The operator, into the loop's outputs."""

    name = "aten"
    origin = "library"
    config = Config()
    source_path = ""

    def __init__(self, kernel: LoopKernel, predicted: Callable[[Mapping[str, int]], float]) -> None:
        assert kernel.library is not None
        self.kernel, self.predicted, self.library = kernel, predicted, kernel.library
        self._into, self._outs = into_form(self.library.target)
        self._tensors = {tensor.name: k for k, tensor in enumerate(kernel.tensors)}
        places = {symbol: k for k, symbol in enumerate(kernel.symbols)}
        self._formulas = {e: encode(e, places) for e in dict.fromkeys(expressions(self.library))}
        self._bound: dict[tuple[int, ...], tuple[Any, Any, list[_Look | None]]] = {}

    @cached_property
    def source_hash(self) -> str:
        return digest(f"aten {torch.__version__} {self.kernel.text}")

    def valid(self, size: Mapping[str, int]) -> bool:
        return True

    def cost(self, size: Mapping[str, int]) -> float:
        """As the generated loop, and the call: where nothing may be measured, what is generated runs."""
        return CALL + self.predicted(size)

    def prepare(self) -> None:
        """Nothing to make."""

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call)

    def _call(self, *args: Any) -> None:
        count = len(self._tensors)
        tensors, ints = args[:count], args[count:]
        bound = self._bound.get(ints)
        if bound is None:
            if len(self._bound) >= MOST_SHAPES:
                self._bound.clear()
            bound = self._bound[ints] = self._at(ints)
        given, named, outputs = bound
        given, named = _filled(given, tensors), dict(_filled(named, tensors))
        if self.library.target in COPIES and outputs[0] is not None:
            outputs[0].of(tensors).copy_(given[0])
        elif not outputs:
            self.library.target(*given, **named)
        elif self._into is not None and None not in outputs:
            outs = {name: look.of(tensors) for name, look in zip(self._outs, outputs, strict=True) if look is not None}
            self._into(*given, **named, **outs)
        else:
            results = self.library.target(*given, **named)
            for look, result in zip(outputs, results if isinstance(results, tuple | list) else (results,), strict=True):
                if look is not None:
                    look.of(tensors).copy_(result)

    def _at(self, ints: Sequence[int]) -> tuple[Any, Any, list[_Look | None]]:
        """The arguments and outputs at these sizes, tensors left open."""
        values = {e: evaluate(formula, ints) for e, formula in self._formulas.items()}

        def look(view: View) -> _Look:
            extents, strides = (tuple(values[e] for e in group) for group in (view.sizes, view.strides))
            return _Look(self._tensors.get(view.buffer, -1), view.dtype, extents, strides, values[view.offset])

        args, kwargs = mapped((self.library.args, self.library.kwargs), look, lambda e: values[e])
        return args, kwargs, [None if view is None else look(view) for view in self.library.outputs]


def _filled(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, _Look):
        return value.of(tensors)
    if isinstance(value, tuple | list):
        return type(value)(_filled(v, tensors) for v in value)
    return value


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


def library_of(kernel: LoopKernel, predicted: Callable[[Mapping[str, int]], float]) -> tuple[AloneLibrary, ...]:
    """The candidate, if the kernel is one operator and all numbers among its arguments can be computed in a call."""
    if kernel.library is None:
        return ()
    try:
        return (AloneLibrary(kernel, predicted),)
    except IRError:
        return ()


__all__ = ["AloneLibrary", "into_form", "library_of"]
