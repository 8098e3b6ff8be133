"""C++ text of every IR operation: {0}, {1}, ... are vector operands, {T} the result's element type, {L} the lane count, {A} the
first operand's element type. Masks (bool) are vectors of i32 with lanes 0 or -1; comparisons give them through `mask_to<i32>`."""

from __future__ import annotations

import torch

from polytile.errors import LoweringError
from polytile.ir.expr import Op
from polytile.kernels.cpp.text import value_type

_CALLS_1 = (
    "abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv "
    "sigmoid floor ceil trunc round lgamma digamma i0 i0e i1 i1e sign"
).split()
_CALLS_2 = "pow fmod remainder floordiv truncdiv atan2 hypot copysign nextafter minimum maximum shift_left shift_right".split()

TEXT: dict[str, str] = {
    **{name: f"{name}({{0}})" for name in _CALLS_1},
    **{name: f"{name}({{0}}, {{1}})" for name in _CALLS_2},
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "div": "({0} / {1})", "neg": "(-{0})",
    "fma": "mad({0}, {1}, {2})", "reciprocal": "reciprocal({0})",
    "round_bf16": "round_to<bf16>({0})", "round_f16": "round_to<f16>({0})",
    "eq": "mask_to<i32>({0} == {1})", "ne": "mask_to<i32>({0} != {1})",
    "lt": "mask_to<i32>({0} < {1})", "le": "mask_to<i32>({0} <= {1})",
    "gt": "mask_to<i32>({0} > {1})", "ge": "mask_to<i32>({0} >= {1})",
    "isnan": "mask_to<i32>({0} != {0})", "isinf": "mask_to<i32>(isinf({0}))",
    "signbit": "mask_to<i32>(signbit({0}))",
    "logical_and": "({0} & {1})", "logical_or": "({0} | {1})", "logical_xor": "({0} ^ {1})", "logical_not": "(~{0})",
    "bitwise_and": "({0} & {1})", "bitwise_or": "({0} | {1})", "bitwise_xor": "({0} ^ {1})", "bitwise_not": "(~{0})",
    "where": "where<{T}, {L}>({0}, {1}, {2})",
    "philox_uniform": "philox_uniform<{L}>({0}, {1})", "philox_normal": "philox_normal<{L}>({0}, {1})",
    "philox_int": "philox_int<{L}>({0}, {1})",
}  # fmt: skip


def text(node: Op, args: list[str], lanes: str) -> str:
    """The C++ expression of `node` on vector operands `args` of `lanes` lanes."""
    if node.name == "cast":
        return _cast(args[0], node.args[0].dtype, node.dtype, lanes)
    if node.name in ("sign", "abs") and node.dtype == torch.bool:
        return args[0]
    if node.name not in TEXT:
        raise LoweringError(f"the operation {node.name!r} has no C++ text; the operator runs as a library call.")
    first = value_type(node.args[0].dtype) if node.args else "float"
    return TEXT[node.name].format(*args, T=value_type(node.dtype), A=first, L=lanes)


def _cast(arg: str, source: torch.dtype, target: torch.dtype, lanes: str) -> str:
    if source == target:
        return arg
    if target == torch.bool:
        return f"mask_to<i32>({arg} != 0)"
    if source == torch.bool:
        return f"cast<{value_type(target)}>({arg} & 1)"
    return f"cast<{value_type(target)}>({arg})"
