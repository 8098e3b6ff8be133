"""The library's operator as a candidate of a loop that is that operator (`ir/calls.py`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch._C import DispatchKey, _SetExcludeDispatchKeyGuard
from torch.utils._python_dispatch import TorchDispatchMode

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
        self._bound: dict[tuple[int, ...], Bound] = {}
        self._function: Callable[..., Any] | None = None

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
            bound = self._bound[ints] = self._at(ints, args)
        bound(args)

    def _at(self, ints: Sequence[int], tensors: Sequence[Any]) -> Bound:
        """The call at these sizes, which takes the tensors, like `tensors`."""
        values = {e: evaluate(formula, ints) for e, formula in self._formulas.items()}

        def look(view: View) -> _Look:
            extents, strides = (tuple(values[e] for e in group) for group in (view.sizes, view.strides))
            at, whole = self._tensors.get(view.buffer, -1), view.buffer in self.library.whole
            return _Look(at, whole, view.dtype, extents, strides, values[view.offset])

        args, kwargs = mapped((self.library.args, self.library.kwargs), look, lambda e: values[e])
        outputs = [None if view is None else look(view) for view in self.library.outputs]
        target, named = self.library.target, dict(kwargs)
        if target in COPIES and outputs[0] is not None:
            return bound(torch.Tensor.copy_, [outputs[0], args[0]], {})
        if not outputs:
            return bound(target._op, args, named)
        outs = {name: o for name, o in zip(self._outs, outputs, strict=False) if o is not None}
        if self._into is not None and len(outs) == len(outputs):
            return bound(self._quickest(self._into, args, named | outs, tensors), args, named | outs)
        results = bound(self._quickest(target, args, named, tensors), args, named)
        return functools.partial(_copied, results, outputs)

    def _quickest(self, target: Any, args: Sequence[Any], named: Mapping[str, Any], tensors: Sequence[Any]) -> Callable[..., Any]:
        """What calls `target` in the least time, seen on `tensors`."""
        if self._function is None:
            self._function = next((f for f in functions(target) if calls(f, target, args, named, tensors)), target._op)
        return self._function


Bound = Callable[[Sequence[Any]], Any]
"""A call that takes the tensors of a kernel."""


def bound(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Bound:
    """`function(*args, **named)` as a function of the tensors that looks among these are at, made from its text: going through
    looks and lists at each call takes as long as a small operator."""
    names: dict[str, Any] = {"function": function}
    lines: list[str] = []

    def written(value: Any) -> str:
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(written, value))}]"
        k = len(names)
        names[f"v{k}"] = value
        if not isinstance(value, _Look):
            return f"v{k}"
        lines.append(f"t{k} = tensors[{value.at}]")
        names[f"sizes{k}"], names[f"strides{k}"] = value.sizes, value.strides
        same = f"t{k}.shape == sizes{k} and t{k}.stride() == strides{k}" if not value.offset else "False"
        if value.whole:
            same = f"t{k}.dim() == {len(value.sizes)}"
        lines.append(f"if not ({same if value.at >= 0 else 'False'}): t{k} = v{k}.of(tensors)")
        return f"t{k}"

    given = [written(value) for value in args] + [f"{name}={written(value)}" for name, value in named.items()]
    body = "".join(f"    {line}\n" for line in [*lines, f"return function({', '.join(given)})"])
    exec(compile(f"def call(tensors):\n{body}", "<polytile library call>", "exec"), names)
    return names["call"]


def _copied(results: Bound, outputs: Sequence[_Look | None], tensors: Sequence[Any]) -> None:
    """A call whose results are copied to where they belong."""
    found = results(tensors)
    for look, result in zip(outputs, found if isinstance(found, tuple | list) else (found,), strict=False):
        if look is not None:
            look.of(tensors).copy_(result)


FUNCTIONS = (torch._C._VariableFunctions, torch._C._nn)
"""Functions for Python, which take half of the time of the operator's own call: 0.76 µs in place of 1.17 for `erf.out`, 0.97 in
place of 2.22 for `reflection_pad2d.out`. Which of an operator's overloads they call depends on their arguments."""


def functions(target: Any) -> list[Callable[..., Any]]:
    """Those that are called as the operator is."""
    name = target._schema.name.partition("::")[2]
    return [getattr(home, name) for home in FUNCTIONS if hasattr(home, name)]


def calls(
    function: Callable[..., Any], target: Any, args: Sequence[Any], named: Mapping[str, Any], tensors: Sequence[Any]
) -> bool:
    """Whether `function` with these arguments, tensors like these, is a call of the overload `target`. Nothing is computed: what
    is written may be what is read."""
    given, more = bound(lambda *given, **more: (given, more), args, named)(tensors)  # laying them out takes operators too
    try:
        with _seen(DispatchKey.Python), _seen(DispatchKey.PythonTLSSnapshot), _Stopping():
            function(*given, **more)
    except _Reached as reached:
        return reached.args == (target,)
    except (TypeError, RuntimeError):  # it takes other arguments; what is wrong with them its own operator will say
        return False
    return False


def _seen(key: DispatchKey) -> AbstractContextManager[None]:
    """Operators reach modes of this kind, even while candidates are tuned, which keeps them from all."""
    return _SetExcludeDispatchKeyGuard(key, False)


class _Reached(Exception):
    """An operator was about to run."""


class _Stopping(TorchDispatchMode):
    """Lets no operator run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Reached(func)


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
