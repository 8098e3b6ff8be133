"""Triton spellings of types, numbers and index expressions."""

from __future__ import annotations

import functools
import math

import torch

from polytile.codegen import index_text
from polytile.errors import LoweringError

VALUE_TYPE = {
    torch.float32: "tl.float32", torch.float64: "tl.float64", torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16",
    torch.int8: "tl.int8", torch.int16: "tl.int16", torch.int32: "tl.int32", torch.int64: "tl.int64",
    torch.uint8: "tl.uint8", torch.uint16: "tl.uint16", torch.uint32: "tl.uint32", torch.uint64: "tl.uint64",
    torch.bool: "tl.int1", torch.float8_e4m3fn: "tl.float8e4nv", torch.float8_e5m2: "tl.float8e5",
}  # fmt: skip
POINTER_TYPE = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.bfloat16: "*bf16", torch.float16: "*fp16",
    torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
    torch.uint8: "*u8", torch.uint16: "*u16", torch.uint32: "*u32", torch.uint64: "*u64",
    torch.bool: "*i1", torch.float8_e4m3fn: "*fp8e4nv", torch.float8_e5m2: "*fp8e5",
}  # fmt: skip
LITERALS = (torch.float32, torch.int32, torch.int64)
"""Types for which a plain literal beside a value of the type has exactly that value; floating-point literals are float32."""


def value_type(dtype: torch.dtype) -> str:
    if dtype not in VALUE_TYPE:
        raise LoweringError(f"values of type {dtype} have no Triton form; the operator runs as a library call.")
    return VALUE_TYPE[dtype]


def pointer_type(dtype: torch.dtype) -> str:
    if dtype not in POINTER_TYPE:
        raise LoweringError(f"tensors of type {dtype} have no Triton form; the operator runs as a library call.")
    return POINTER_TYPE[dtype]


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """The number as a Python literal."""
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))
    value = float(value)
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def number(value: bool | int | float, dtype: torch.dtype) -> str:
    """A scalar of exactly this value and type."""
    return f"tl.full([], {literal(value, dtype)}, {value_type(dtype)})"


index = functools.partial(index_text.index, dialect=index_text.TRITON)
"""An index expression over integer variables named like its symbols."""
