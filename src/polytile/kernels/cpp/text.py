"""C++ spellings of types, numbers and index expressions."""

from __future__ import annotations

import numpy as np
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing, PythonMod

from polytile.errors import LoweringError
from polytile.ir import sizes

VALUE_TYPE = {
    torch.float32: "float", torch.float64: "double", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32",
    torch.int64: "i64", torch.uint8: "u8", torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64",
    torch.bool: "i32",  # a mask: 0 or -1
}  # fmt: skip
STORAGE_TYPE = {**VALUE_TYPE, torch.bfloat16: "bf16", torch.float16: "f16", torch.bool: "bool8"}


def value_type(dtype: torch.dtype) -> str:
    """Element type of a vector that holds values of `dtype`; bool is a mask of 32-bit lanes."""
    if dtype not in VALUE_TYPE:
        raise LoweringError(f"values of type {dtype} have no C++ vector form; the operator runs as a library call.")
    return VALUE_TYPE[dtype]


def storage_type(dtype: torch.dtype) -> str:
    if dtype not in STORAGE_TYPE:
        raise LoweringError(f"tensors of type {dtype} have no C++ storage form; the operator runs as a library call.")
    return STORAGE_TYPE[dtype]


def number(value: bool | int | float, dtype: torch.dtype) -> str:
    """A literal of this value."""
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


def index(e: sympy.Expr) -> str:
    """An index expression over `long` variables named like its symbols. Divisions are of values ≥ 0, except that Python's
    modulus takes any value."""
    return _sum(e)


def factor(e: sympy.Expr) -> str:
    """An index expression that can stand anywhere in another one."""
    return _atom(e)


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
            return f"({_atom(e.args[0])} / {_atom(e.args[1])})"
        case PythonMod() if not sizes.is_nonnegative(e.args[0]):
            x, d = (_atom(a) for a in e.args)
            return f"(({x} % {d} + {d}) % {d})"
        case Mod() | PythonMod():
            return f"({_atom(e.args[0])} % {_atom(e.args[1])})"
        case ModularIndexing():
            x, d, m = (_atom(a) for a in e.args)
            return f"(({x} / {d}) % {m})"
        case sympy.Max() | sympy.Min():
            return _extreme([_atom(a) for a in e.args], ">" if isinstance(e, sympy.Max) else "<")
    if type(e).__name__ in ("Max", "Min"):  # torch's own classes of the same meaning
        return _extreme([_atom(a) for a in e.args], ">" if type(e).__name__ == "Max" else "<")
    raise LoweringError(
        f"the index expression {e} ({type(e).__name__}) has no C++ form; the operator runs as a library call."
    )


def _extreme(args: list[str], sign: str) -> str:
    result = args[0]
    for other in args[1:]:
        result = f"({result} {sign} {other} ? {result} : {other})"
    return result
