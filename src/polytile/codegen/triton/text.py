"""Triton spellings of types, numbers and index expressions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from polytile.codegen import index_text
from polytile.errors import LoweringError

TYPES = {
    torch.float32: ("float32", "fp32"), torch.float64: ("float64", "fp64"), torch.bfloat16: ("bfloat16", "bf16"),
    torch.float16: ("float16", "fp16"), torch.int8: ("int8", "i8"), torch.int16: ("int16", "i16"), torch.int32: ("int32", "i32"),
    torch.int64: ("int64", "i64"), torch.uint8: ("uint8", "u8"), torch.uint16: ("uint16", "u16"), torch.uint32: ("uint32", "u32"),
    torch.uint64: ("uint64", "u64"), torch.bool: ("int1", "i1"), torch.float8_e4m3fn: ("float8e4nv", "fp8e4nv"),
    torch.float8_e5m2: ("float8e5", "fp8e5"),
}  # fmt: skip
"""Names of types, of values and in signatures."""
LITERALS = (torch.float32, torch.int32, torch.int64)
"""Types for which a plain literal beside a value of the type has exactly that value; floating-point literals are float32."""


def value_type(dtype: torch.dtype) -> str:
    """Triton's type of values of `dtype`. Raises LoweringError for a dtype that Triton lacks."""
    if dtype not in TYPES:
        raise LoweringError(f"values of type {dtype} have no Triton form; the operator runs as a library call.")
    return f"tl.{TYPES[dtype][0]}"


def pointer_type(dtype: torch.dtype) -> str:
    """Triton's type of pointers to `dtype`. Raises LoweringError for a dtype that Triton lacks."""
    if dtype not in TYPES:
        raise LoweringError(f"tensors of type {dtype} have no Triton form; the operator runs as a library call.")
    return f"*{TYPES[dtype][1]}"


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """The number as a Python literal."""
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))
    value = float(value)
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def masked(conditions: Sequence[str]) -> str:
    """The mask of a load or a store, as a further argument; "" without conditions."""
    return f", mask={' & '.join(conditions)}" if conditions else ""


def number(value: bool | int | float, dtype: torch.dtype) -> str:
    """A scalar of exactly this value and type."""
    return f"tl.full([], {literal(value, dtype)}, {value_type(dtype)})"


index = functools.partial(index_text.index, dialect=index_text.TRITON)
"""An index expression over integer variables named like its symbols."""
