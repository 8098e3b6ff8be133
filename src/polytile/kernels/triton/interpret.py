"""Generated kernels without a GPU: their launches on CPU tensors under Triton's interpreter.

Triton decides when it is imported whether functions are interpreted: TRITON_INTERPRET=1 must stand in the environment by
then. libdevice has no interpreter of its own; here torch computes what it would. The interpreter keeps bfloat16 as bits and
multiplies matrices of bits; here they become numbers first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy
import torch

from polytile.ir import sizes
from polytile.kernels.triton.kernel import KERNEL, Argument, Kind, Launch, TritonKernel
from polytile.kernels.triton.module import load


def available() -> bool:
    """Whether this process interprets Triton functions."""
    import triton

    return bool(triton.knobs.runtime.interpret) and not isinstance(triton.language.sum, triton.JITFunction)


def run(kernel: TritonKernel, tensors: Mapping[str, torch.Tensor], values: Mapping[str, int]) -> int:
    """Runs the launches on `tensors` (by name; the first element is the buffer's first) with the integers `values`. Returns the
    number of a run-time check that failed, or 0. Raises RuntimeError in a process that compiles Triton functions."""
    if not available():
        raise RuntimeError(
            "Triton kernels cannot be interpreted in this process: set TRITON_INTERPRET=1 in its environment before it starts."
        )
    numbers = {sympy.Symbol(name, integer=True, positive=True): n for name, n in values.items()}
    scratch = [
        torch.zeros(max(1, sizes.evaluate(s.size, numbers)), dtype=s.dtype) if s.zeroed
        else torch.full((max(1, sizes.evaluate(s.size, numbers)),), 77, dtype=s.dtype)
        for s in kernel.scratch
    ]  # fmt: skip
    error = torch.zeros(1, dtype=torch.int32)
    for launch in kernel.launches:
        grid = tuple(sizes.evaluate(g, numbers) for g in launch.grid)
        if 0 not in grid:
            args = [_value(a, tensors, values, scratch, error) for a in launch.arguments]
            _function(launch)[grid](*args, **dict(launch.constants))
    for memory, kind in zip(scratch, kernel.scratch, strict=True):
        if kind.zeroed and bool(memory.view(torch.uint8).any()):
            raise AssertionError("a kernel left scratch memory that it must leave zero with something in it")
    return int(error)


def _value(
    argument: Argument,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, int],
    scratch: Sequence[torch.Tensor],
    error: torch.Tensor,
) -> Any:
    match argument.kind:
        case Kind.TENSOR:
            return tensors[argument.name]
        case Kind.SYMBOL:
            return _integer(values[argument.name], argument.type)
        case Kind.SCRATCH:
            return scratch[argument.index]
    return error


@functools.lru_cache(maxsize=256)
def _function(launch: Launch) -> Any:
    _multiply_bfloat16()
    names = load(launch.source.replace("tl.range(", "range("))
    names.update(libdevice=Libdevice(), range=_range)
    return names[KERNEL]


@functools.cache
def _multiply_bfloat16() -> None:
    """Puts a matrix product that knows bfloat16 in place of the interpreter's own."""
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    own = interpreter_builder.create_dot

    def number(value: Any) -> Any:
        if not value.dtype.is_bf16():
            return value
        import triton.language as tl

        return TensorHandle((value.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(a: Any, b: Any, *rest: Any) -> Any:
        return own(number(a), number(b), *rest)

    interpreter_builder.create_dot = create_dot


def _range(*bounds: Any, **_hints: Any) -> range:
    """`range` over the interpreter's scalars, which are arrays of one element; what a loop tells the compiler besides means
    nothing here."""
    return range(*[int(b.handle.data.item()) if hasattr(b, "handle") else int(b) for b in bounds])


def _integer(value: int, kind: str) -> Any:
    """A scalar argument of Triton's type `kind`, which would else follow from its value."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    dtype, array = (tl.int64, np.int64) if kind == "i64" else (tl.int32, np.int32)
    return tl.tensor(TensorHandle(np.array([value], dtype=array), dtype), dtype)


_TORCH: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in (
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv "
        "lgamma trunc rsqrt sqrt pow atan2 hypot copysign nextafter fmod"
    ).split()},
    "nearbyint": torch.round, "cyl_bessel_i0": torch.special.i0, "cyl_bessel_i1": torch.special.i1,
}  # fmt: skip


class Libdevice:
    """Stands for `triton.language.extra.libdevice` in interpreted sources."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _TORCH:
            raise AttributeError(f"libdevice.{name} has no meaning under the interpreter; add it to {__name__}.")
        return functools.partial(_apply, _TORCH[name])


def _apply(function: Callable[..., torch.Tensor], *args: Any) -> Any:
    """`function` on the interpreter's tensors."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    first = next(a for a in args if isinstance(a, tl.tensor))
    data = [a.handle.data if isinstance(a, tl.tensor) else np.asarray(a, first.handle.data.dtype) for a in args]
    result = np.asarray(function(*[torch.from_numpy(np.ascontiguousarray(d)) for d in data]).numpy())
    shape = np.broadcast_shapes(*[d.shape for d in data])
    shaped = next((a for a in args if isinstance(a, tl.tensor) and a.handle.data.shape == shape), first)
    return tl.tensor(TensorHandle(result.reshape(shape), first.handle.dtype), shaped.type)
