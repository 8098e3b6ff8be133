"""Triton spellings of types, numbers and index expressions."""

from __future__ import annotations

import math

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing, PythonMod

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
"""Types of which a plain literal beside a value of the type stands for that very value; floating ones are float32."""


def value_type(dtype: torch.dtype) -> str:
    if dtype not in VALUE_TYPE:
        raise LoweringError(f"values of type {dtype} have no Triton form; the operator runs as a library call.")
    return VALUE_TYPE[dtype]


def pointer_type(dtype: torch.dtype) -> str:
    if dtype not in POINTER_TYPE:
        raise LoweringError(f"tensors of type {dtype} have no Triton form; the operator runs as a library call.")
    return POINTER_TYPE[dtype]


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """The number as Python writes it."""
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))
    value = float(value)
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def number(value: bool | int | float, dtype: torch.dtype) -> str:
    """A scalar of exactly this value and type."""
    return f"tl.full([], {literal(value, dtype)}, {value_type(dtype)})"


def index(e: sympy.Expr) -> str:
    """An index expression over integer variables named like its symbols. Divisions are of values ≥ 0."""
    return _sum(e)


def _sum(e: sympy.Expr) -> str:
    if isinstance(e, sympy.Add):
        return " + ".join(_factor(a) for a in e.as_ordered_terms()).replace("+ -", "- ")
    return _factor(e)


def _factor(e: sympy.Expr) -> str:
    if isinstance(e, sympy.Mul):
        return "*".join(_atom(a) for a in e.args)
    return _atom(e)


def _atom(e: sympy.Expr) -> str:
    match e:
        case sympy.Symbol():
            return e.name
        case sympy.Integer():
            return str(e) if e >= 0 else f"({e})"
        case sympy.Add() | sympy.Mul():
            return f"({_sum(e)})"
        case sympy.Pow() if e.exp.is_Integer and e.exp > 0:
            return "(" + "*".join([_atom(e.base)] * int(e.exp)) + ")"
        case FloorDiv():
            return f"({_atom(e.args[0])} // {_atom(e.args[1])})"
        case PythonMod() if not e.args[0].is_nonnegative:  # Triton's remainder has the sign of the dividend
            x, d = _atom(e.args[0]), _atom(e.args[1])
            return f"(({x} % {d} + {d}) % {d})"
        case Mod() | PythonMod():
            return f"({_atom(e.args[0])} % {_atom(e.args[1])})"
        case ModularIndexing():
            x, d, m = (_atom(a) for a in e.args)
            return f"(({x} // {d}) % {m})"
    if type(e).__name__ in ("Max", "Min"):  # sympy's, and torch's own classes of the same meaning
        return _extreme([_atom(a) for a in e.args], "tl.maximum" if type(e).__name__ == "Max" else "tl.minimum")
    raise LoweringError(
        f"the index expression {e} ({type(e).__name__}) has no Triton form; the operator runs as a library call."
    )


def _extreme(args: list[str], function: str) -> str:
    result = args[0]
    for other in args[1:]:
        result = f"{function}({result}, {other})"
    return result
