"""Replacements, in interpreted sources, of functions that Triton's interpreter lacks or computes one element at a time.

Values are the interpreter's: a `tl.tensor` whose handle holds a numpy array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from polytile.codegen.triton.cluster_interpreter import (
    interpreted_cluster_arrive,
    interpreted_cluster_barrier,
    interpreted_dsmem_init,
    interpreted_dsmem_read,
    interpreted_dsmem_send,
    interpreted_dsmem_wait,
    interpreted_opaque,
)

_REDUCED: dict[str, Callable[..., Any]] = {
    "pt_add": np.add.reduce, "pt_mul": np.multiply.reduce, "pt_or": np.bitwise_or.reduce, "pt_and": np.bitwise_and.reduce,
    "pt_max": np.maximum.reduce, "pt_min": np.minimum.reduce, "pt_int_max": np.maximum.reduce,
    "pt_int_min": np.minimum.reduce,
}  # fmt: skip
"""numpy's equivalents of combining functions (helpers.py)."""


def _array(value: Any) -> np.ndarray[Any, Any]:
    return value.handle.data


def _block(array: np.ndarray[Any, Any], like: Any) -> Any:
    """Wraps `array` as an interpreter value with the element type of `like`."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    dtype = like.dtype
    kind = tl.block_type(dtype, list(array.shape)) if array.shape else dtype
    return tl.tensor(TensorHandle(array if array.shape else array.reshape(1), dtype), kind)


def interpreted_range(*bounds: Any, **_hints: Any) -> range:
    """`range` over scalars, which are one-element arrays. Ignores hints to the compiler."""
    return range(*[int(_array(b).item()) if hasattr(b, "handle") else int(b) for b in bounds])


def interpreted_reduce(value: Any, axis: int, combine: Any, keep_dims: bool = False) -> Any:
    """`tl.reduce`: combines neighbours until one value is left, unless numpy has an equivalent reduction."""
    parts = value if isinstance(value, tuple) else (value,)
    own = _REDUCED.get(combine.fn.__name__)
    if own is not None:
        return _block(np.asarray(own(_array(value), axis=axis, keepdims=keep_dims, dtype=_array(value).dtype)), value)
    arrays = [np.moveaxis(_array(p), axis, 0) for p in parts]
    while len(arrays[0]) > 1:
        arrays = _combined(combine, parts, [a[0::2] for a in arrays], [a[1::2] for a in arrays])
    arrays = [a if keep_dims else a[0] for a in arrays]
    results = tuple(_block(np.moveaxis(a, 0, axis) if keep_dims else a, p) for a, p in zip(arrays, parts, strict=True))
    return results if isinstance(value, tuple) else results[0]


def interpreted_scan(value: Any, axis: int, combine: Any) -> Any:
    """`tl.associative_scan`: combines each element with the one 1, 2, 4, ... before it."""
    parts = value if isinstance(value, tuple) else (value,)
    arrays = [np.moveaxis(_array(p), axis, 0).copy() for p in parts]
    step = 1
    while step < len(arrays[0]):
        after = _combined(combine, parts, [np.roll(a, step, axis=0) for a in arrays], arrays)
        arrays = [np.concatenate([a[:step], b[step:]]) for a, b in zip(arrays, after, strict=True)]
        step *= 2
    results = tuple(_block(np.moveaxis(a, 0, axis), p) for a, p in zip(arrays, parts, strict=True))
    return results if isinstance(value, tuple) else results[0]


def _combined(
    combine: Any, parts: tuple[Any, ...], left: list[np.ndarray[Any, Any]], right: list[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    values = [_block(a, p) for side in (left, right) for a, p in zip(side, parts, strict=True)]
    results = combine.fn(*values)
    return [_array(f) for f in (results if isinstance(results, tuple) else (results,))]


def interpreted_sum(value: Any, axis: int, keep_dims: bool = False) -> Any:
    """`tl.sum` by halves, as threads do."""
    array = np.moveaxis(_array(value), axis, 0)
    while len(array) > 1:
        array = array[0::2] + array[1::2]
    return _block(np.moveaxis(array, 0, axis) if keep_dims else array[0], value)


CALLS: dict[str, Callable[..., Any]] = {
    "tl.sum": interpreted_sum, "tl.reduce": interpreted_reduce, "tl.associative_scan": interpreted_scan,
    "tl.range": interpreted_range, "pt_opaque": interpreted_opaque,
    "pt_cluster_barrier": interpreted_cluster_barrier, "pt_cluster_arrive": interpreted_cluster_arrive,
    "pt_cluster_wait": interpreted_cluster_barrier, "pt_dsmem_init": interpreted_dsmem_init,
    "pt_dsmem_send": interpreted_dsmem_send, "pt_dsmem_wait": interpreted_dsmem_wait, "pt_dsmem_read": interpreted_dsmem_read,
}  # fmt: skip
"""Triton functions and their replacements."""


_FLOATS = {
    "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
}  # fmt: skip
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def convert_float(data: np.ndarray[Any, Any], source: Any, target: Any, rounding: Any) -> np.ndarray[Any, Any]:
    """The bits of floating-point numbers in another type, rounded to nearest as on GPUs. Triton's interpreter truncates."""
    from_, to = _FLOATS[str(source)], _FLOATS[str(target)]
    bits = np.ascontiguousarray(data).view(_BITS[from_.itemsize]).copy()
    converted = torch.from_numpy(bits.view(np.uint8)).view(from_).to(to)
    return converted.view(torch.uint8).numpy().view(_BITS[to.itemsize]).reshape(data.shape)


_TORCH: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in (
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv "
        "lgamma trunc rsqrt sqrt pow atan2 hypot copysign fmod"
    ).split()},
    "nearbyint": torch.round, "fast_dividef": torch.div,
}  # fmt: skip


class Libdevice:
    """Replaces `triton.language.extra.libdevice` in interpreted sources."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _TORCH:
            raise AttributeError(f"libdevice.{name} has no meaning under the interpreter; add it to {__name__}.")
        return functools.partial(_apply, _TORCH[name])


def _apply(function: Callable[..., torch.Tensor], *args: Any) -> Any:
    """Applies `function` to the interpreter's tensors."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    first = next(a for a in args if isinstance(a, tl.tensor))
    data = [a.handle.data if isinstance(a, tl.tensor) else np.asarray(a, first.handle.data.dtype) for a in args]
    result = np.asarray(function(*[torch.from_numpy(np.ascontiguousarray(d)) for d in data]).numpy())
    shape = np.broadcast_shapes(*[d.shape for d in data])
    shaped = next((a for a in args if isinstance(a, tl.tensor) and a.handle.data.shape == shape), first)
    return tl.tensor(TensorHandle(result.reshape(shape), first.handle.dtype), shaped.type)


@functools.cache
def multiply_bfloat16() -> None:
    """Replaces the interpreter's matrix product by one that supports bfloat16. The interpreter stores bfloat16 as bits,
    and would multiply those."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    own = interpreter_builder.create_dot

    def number(value: Any) -> Any:
        if not value.dtype.is_bf16():
            return value
        return TensorHandle((value.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(a: Any, b: Any, *rest: Any) -> Any:
        return own(number(a), number(b), *rest)

    interpreter_builder.create_dot = create_dot


@functools.cache
def spread_as_blocks() -> None:
    """Gives a scalar that is broadcast to a block the block's type. The interpreter keeps the scalar's type and then
    treats a comparison of two integers as an integer, which Triton 3.9 rejects as a mask."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype, interpreter_builder

    def create_splat(block: tl.block_type, number: Any) -> Any:
        return TensorHandle(np.full(block.shape, number.data.reshape(-1)[0], _get_np_dtype(block)), block.scalar)

    interpreter_builder.create_splat = create_splat
