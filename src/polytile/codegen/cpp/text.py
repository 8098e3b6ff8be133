"""C++ spellings of types, numbers and index expressions."""

from __future__ import annotations

import functools

import numpy as np
import torch

from polytile.codegen import index_text
from polytile.errors import LoweringError

VALUE_TYPE = {
    torch.float32: "float", torch.float64: "double", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32",
    torch.int64: "i64", torch.uint8: "u8", torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64",
    torch.bool: "i32",  # a mask: 0 or -1
}  # fmt: skip
STORAGE_TYPE = {**VALUE_TYPE, torch.bfloat16: "bf16", torch.float16: "f16", torch.bool: "bool8"}
STORAGE_TYPE |= {torch.float8_e5m2: "f8e5", torch.float8_e4m3fn: "f8e4"}  # only read


def value_type(dtype: torch.dtype) -> str:
    """Element type of a vector that holds values of `dtype`; bool is a mask of 32-bit lanes. Raises LoweringError for a
    dtype that vectors cannot hold."""
    if dtype not in VALUE_TYPE:
        raise LoweringError(f"values of type {dtype} have no C++ vector form; the operator runs as a library call.")
    return VALUE_TYPE[dtype]


def storage_type(dtype: torch.dtype) -> str:
    """Element type of a tensor of `dtype`. Raises LoweringError for a dtype that kernels do not read."""
    if dtype not in STORAGE_TYPE:
        raise LoweringError(f"tensors of type {dtype} have no C++ storage form; the operator runs as a library call.")
    return STORAGE_TYPE[dtype]


def number(value: bool | int | float, dtype: torch.dtype) -> str:
    """A constant of `dtype` as a literal; true is -1, a mask with all bits set."""
    if dtype == torch.bool:
        return "-1" if value else "0"
    if dtype.is_floating_point:
        return _float(float(value), dtype)
    if value == -(2**63):
        return "(-9223372036854775807L - 1)"
    return f"{int(value)}" + ("UL" if dtype == torch.uint64 else "L")


def _float(value: float, dtype: torch.dtype) -> str:
    """The shortest decimal that the compiler reads as `value` rounded to `dtype`."""
    with np.errstate(over="ignore"):
        short, suffix = (np.float32(value), "f") if dtype == torch.float32 else (np.float64(value), "")
    if np.isnan(short):
        return f'__builtin_nan{suffix}("")'
    if np.isinf(short):
        return f"{'-' if short < 0 else ''}__builtin_inf{suffix}()"
    return str(short) + suffix


index = functools.partial(index_text.index, dialect=index_text.CPP)
"""An index expression over `long` variables named like its symbols."""
factor = functools.partial(index_text.factor, dialect=index_text.CPP)
"""An index expression that may appear as an operand of any other."""
