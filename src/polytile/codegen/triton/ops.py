"""Triton text of every IR operation: {0}, {1}, ... are operands, {T} is the result's type.

Names that begin with `pt_` are helper functions (helpers.py). In tables by type, a float32 operation may be approximate
to within a few units in the last place, as Triton's own are. Triton's -x is 0 - x, which loses the sign of zero.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from polytile.codegen.emission import COMPARISONS
from polytile.codegen.triton.text import value_type
from polytile.errors import LoweringError
from polytile.ir.expr import Node, Op, Part, Reduce

_LIBDEVICE_1 = ("expm1 log10 log1p erfc erfinv tan asin acos atan sinh cosh tanh asinh acosh atanh lgamma trunc").split()
_LIBDEVICE_2 = "pow atan2 hypot copysign fmod".split()

FLOATS: dict[str, str] = {
    **{name: f"libdevice.{name}({{0}})" for name in _LIBDEVICE_1},
    **{name: f"libdevice.{name}({{0}}, {{1}})" for name in _LIBDEVICE_2},
    "exp": "libdevice.exp({0})", "exp2": "libdevice.exp2({0})", "log": "libdevice.log({0})", "log2": "libdevice.log2({0})",
    "sin": "libdevice.sin({0})", "cos": "libdevice.cos({0})", "erf": "libdevice.erf({0})", "sqrt": "pt_sqrt({0})",
    "rsqrt": "libdevice.rsqrt({0})", "sigmoid": "1.0 / (1.0 + libdevice.exp(-{0}))", "reciprocal": "1.0 / {0}",
    "div": "{0} / {1}", "fma": "tl.fma({0}, {1}, {2})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "round": "libdevice.nearbyint({0})",
    "floordiv": "pt_floordiv({0}, {1})", "truncdiv": "libdevice.trunc(pt_exact_div({0}, {1}))",
    "remainder": "pt_remainder({0}, {1})",
    "sign": "({0} > 0).to({T}) - ({0} < 0).to({T})",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "round_bf16": "{0}.to(tl.float32).to(tl.bfloat16).to({T})", "round_f16": "{0}.to(tl.float32).to(tl.float16).to({T})",
    "round_e5m2": "pt_float8e5({0}.to(tl.float32)).to({T})", "round_e4m3": "pt_float8e4nv({0}.to(tl.float32)).to({T})",
    "isnan": "{0} != {0}", "isinf": "tl.abs({0}) == float(\"inf\")", "signbit": "pt_signbit({0})",
    "digamma": "pt_digamma({0})", "neg": "{0} * -1.0",
}  # fmt: skip
FAST: dict[str, str] = {
    "round_bf16": "{0}.to(tl.bfloat16).to({T})", "round_f16": "{0}.to(tl.float16).to({T})",
    "exp": "pt_exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})",
    "rsqrt": "tl.rsqrt({0})", "sigmoid": "tl.sigmoid({0})", "erf": "pt_erf({0})",
}  # fmt: skip
"""Replaces FLOATS if no tensor of the kernel has more than 16 bits per element: errors of 2⁻²⁰ are far below their
precision."""

INTEGERS: dict[str, str] = {
    "floordiv": "pt_int_floordiv({0}, {1})", "truncdiv": "pt_int_truncdiv({0}, {1})",
    "remainder": "pt_int_remainder({0}, {1})", "fmod": "pt_int_fmod({0}, {1})",
    "sign": "({0} > 0).to({T}) - ({0} < 0).to({T})",
    "minimum": "tl.minimum({0}, {1})", "maximum": "tl.maximum({0}, {1})",
    "floor": "{0}", "ceil": "{0}", "trunc": "{0}", "round": "{0}", "isnan": "{0} != {0}", "isinf": "{0} != {0}",
    "signbit": "{0} < 0", "pow": "pt_int_pow({0}, {1})", "fma": "{0} * {1} + {2}",
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "bitwise_not": "0 - {0} - 1",
    "shift_left": "pt_shift_left({0}, {1})", "shift_right": "pt_shift_right({0}, {1})",
    "philox_uniform": "pt_philox_uniform({0}, {1}, {T})", "philox_normal": "pt_philox_normal({0}, {1}, {T})",
    "philox_int": "pt_philox_int({0}, {1}, {T})",
}  # fmt: skip
UNSIGNED = {"shift_right": "pt_shift_right_unsigned({0}, {1})"}
BOTH: dict[str, str] = {
    **{name: f"{{0}} {sign} {{1}}" for name, sign in COMPARISONS.items()},
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}", "abs": "tl.abs({0})",
    "where": "tl.where({0}, {1}, {2})",
}  # fmt: skip
BOOLS: dict[str, str] = {
    "logical_and": "{0} & {1}", "logical_or": "{0} | {1}", "logical_xor": "{0} ^ {1}", "logical_not": "{0} == 0",
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "bitwise_not": "{0} == 0",
    "minimum": "{0} & {1}", "maximum": "{0} | {1}", "mul": "{0} & {1}", "add": "{0} | {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "({0} == 0) & {1}", "le": "({0} == 0) | {1}", "gt": "{0} & ({1} == 0)",
    "ge": "{0} | ({1} == 0)", "signbit": "{0} != {0}", "isnan": "{0} != {0}", "isinf": "{0} != {0}",
    **dict.fromkeys(("abs", "sign", "floor", "ceil", "trunc", "round"), "{0}"),
}  # fmt: skip
"""Operations on bool operands."""

FLOAT8 = {torch.float8_e5m2: "pt_float8e5", torch.float8_e4m3fn: "pt_float8e4nv"}
NARROW = (torch.int8, torch.int16, torch.uint8, torch.uint16)
"""Integer types whose arithmetic Triton may widen, so results are cast back."""


def summed_exponentials(nodes: Iterable[Node], roots: Iterable[Node]) -> frozenset[int]:
    """Ids of the exp(x - max x) among `nodes` that are used only in sums and are not among `roots`.

    These may be FAST in float32 too, like the sums that run over blocks: their relative error is 2⁻²² + |x - max
    x|·2⁻²⁴, and terms far below the largest one contribute little.
    """
    nodes = tuple(nodes)
    others = {id(child) for node in nodes if not (isinstance(node, Reduce) and node.kind == "sum") for child in node.children}
    others.update(map(id, roots))
    summed = {id(arg) for node in nodes if isinstance(node, Reduce) and node.kind == "sum" for arg in node.args}
    exps = [node for node in nodes if isinstance(node, Op) and node.name == "exp" and _below_zero(node)]
    return frozenset(id(node) for node in exps if id(node) in summed - others)


def is_total(node: Node) -> bool:
    """Whether a float32 value is a row's sum of exp(x - max x), the divisor of all of the row. Its reciprocal is then
    computed once, and multiplied."""
    if node.dtype != torch.float32:
        return False
    if isinstance(node, Part):
        return node.k == 1 and isinstance(node.node, Reduce) and node.node.kind == "online_softmax"
    (arg,) = node.args if isinstance(node, Reduce) and node.kind == "sum" else (None,)
    return isinstance(arg, Op) and arg.name == "exp" and _below_zero(arg)


def _below_zero(node: Op) -> bool:
    """Whether the argument is x - max x."""
    (arg,) = node.args
    if not isinstance(arg, Op) or arg.name != "sub":
        return False
    value, most = arg.args
    return isinstance(most, Reduce) and most.kind == "max" and most.args[0] is value


def text(node: Op, args: list[str], fast: bool) -> str:
    """The expression of `node` on operands `args`, each a name or parenthesised. `fast`: see FAST. Raises LoweringError
    for an operation without Triton text."""
    source = node.args[0].dtype
    if node.name == "cast":
        return convert(args[0], source, node.dtype)
    if node.name == "bitcast":
        if source == node.dtype or torch.bool in (source, node.dtype):
            return convert(args[0], source, node.dtype)
        return f"{args[0]}.to({value_type(node.dtype)}, bitcast=True)"
    table = _table(source, fast and node.dtype == torch.float32) if node.name != "where" else BOTH
    if node.name not in table:
        raise LoweringError(f"the operation {node.name!r} on {source} has no Triton text; the operator runs as a library call.")
    spelled = table[node.name].format(*args, T=value_type(node.dtype))
    return f"({spelled}).to({value_type(node.dtype)})" if node.dtype in NARROW and node.name != "where" else spelled


def _table(source: torch.dtype, fast: bool) -> dict[str, str]:
    if source == torch.bool:
        return BOOLS
    if not source.is_floating_point:
        return {**BOTH, **INTEGERS} if source.is_signed else {**BOTH, **INTEGERS, **UNSIGNED}
    return {**BOTH, **FLOATS, **FAST} if fast else {**BOTH, **FLOATS}


def convert(arg: str, source: torch.dtype, target: torch.dtype) -> str:
    """Converts the value `arg` from type `source` to `target`, as torch does."""
    if source == target:
        return arg
    if target == torch.bool:
        return f"({arg} != 0)"
    if target in FLOAT8:
        return f"{FLOAT8[target]}({arg}{'' if source == torch.float32 else '.to(tl.float32)'})"
    if target.is_floating_point and target.itemsize <= 2 and source != torch.float32:
        return f"{arg}.to(tl.float32).to({value_type(target)})"
    if source.is_floating_point and target in NARROW:  # through an int that holds the whole value, then its low bits
        return f"{arg}.to({'tl.int64' if target == torch.uint8 else 'tl.int32'}).to({value_type(target)})"
    return f"{arg}.to({value_type(target)})"
