"""C++ text of every IR operation: {0}, {1}, ... are vector operands, {T} is the result's element type, {L} the lane
count.

Masks (bool) are vectors of i32 with lanes 0 or -1; comparisons produce them through `mask_to<i32>`.
"""

from __future__ import annotations

import torch

from polytile.codegen.cpp.text import value_type
from polytile.codegen.emission import COMPARISONS
from polytile.errors import LoweringError
from polytile.ir.expr import Op

_CALLS_1 = (
    "abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc erfinv sigmoid floor ceil trunc round lgamma digamma sign"
).split()
_CALLS_2 = ("pow fmod remainder floordiv truncdiv atan2 hypot copysign minimum maximum shift_left shift_right").split()

TEXT: dict[str, str] = {
    **{name: f"{name}({{0}})" for name in _CALLS_1},
    **{name: f"{name}({{0}}, {{1}})" for name in _CALLS_2},
    **{name: f"mask_to<i32>({{0}} {sign} {{1}})" for name, sign in COMPARISONS.items()},
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}", "fma": "mad({0}, {1}, {2})",
    "round_bf16": "round_to<bf16, {T}, {L}>({0})", "round_f16": "round_to<f16, {T}, {L}>({0})",
    "isnan": "mask_to<i32>({0} != {0})", "isinf": "mask_to<i32>(isinf({0}))", "signbit": "mask_to<i32>(signbit({0}))",
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "bitwise_not": "~{0}",
    "where": "where<{T}, {L}>({0}, {1}, {2})", "bitcast": "as<{T}>({0})",
    "philox_uniform": "philox_uniform<{L}>({0}, {1})", "philox_normal": "philox_normal<{L}>({0}, {1})",
    "philox_int": "philox_int<{T}, {L}>({0}, {1})",
}  # fmt: skip

ON_MASKS: dict[str, str] = {
    "logical_and": "{0} & {1}", "logical_or": "{0} | {1}", "logical_xor": "{0} ^ {1}", "logical_not": "~{0}",
    "minimum": "{0} & {1}", "maximum": "{0} | {1}", "mul": "{0} & {1}", "add": "{0} | {1}",
    "eq": "~({0} ^ {1})", "ne": "{0} ^ {1}", "lt": "~{0} & {1}", "le": "~{0} | {1}", "gt": "{0} & ~{1}", "ge": "{0} | ~{1}",
    "abs": "{0}", "sign": "{0}", "signbit": "{0} ^ {0}",
}  # fmt: skip
"""Arithmetic and comparisons on operands that are masks."""


def text(node: Op, args: list[str], lanes: str) -> str:
    """The C++ expression of `node` on vector operands `args` of `lanes` lanes. Raises LoweringError for an operation
    without C++ text."""
    source = node.args[0].dtype
    if node.name == "cast" or (node.name == "bitcast" and torch.bool in (source, node.dtype)):
        return convert(args[0], source, node.dtype)
    table = {**TEXT, **ON_MASKS} if source == torch.bool and node.name != "where" else TEXT
    if node.name not in table:
        raise LoweringError(f"the operation {node.name!r} on {source} has no C++ text; the operator runs as a library call.")
    return table[node.name].format(*args, T=value_type(node.dtype), L=lanes)


def convert(arg: str, source: torch.dtype, target: torch.dtype) -> str:
    """Converts the value `arg` from type `source` to type `target`."""
    if source == target:
        return arg
    if target == torch.bool:
        return f"mask_to<i32>({arg} != 0)"
    if source == torch.bool:
        return f"cast<{value_type(target)}>({arg} & 1)"
    return f"cast<{value_type(target)}>({arg})"
