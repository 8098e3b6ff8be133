"""Lowerings of pointwise operators: those in the table, and those with further arguments.

Arithmetic on bfloat16 and float16 runs in float32, and is rounded where a result is stored or explicitly converted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import sympy
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.overloads import overloads
from polytile.frontend.lower.pointwise_table import TABLE, Element, Row, like, node, selected
from polytile.frontend.lower.positions import bounds
from polytile.frontend.lower.registry import lowers, lowers_later
from polytile.frontend.lower.scalars import scalar_tensor
from polytile.frontend.lower.value import LOOP_DTYPES, Point, Tensor, computed, convert, widen
from polytile.ir import expr
from polytile.ir.dtypes import FLOAT8
from polytile.ir.expr import Node
from polytile.ir.sizes import ONE
from polytile.runtime.target import Target

Operand = Any  # Tensor, Python number or sympy expression


def check_dtypes(*dtypes: torch.dtype) -> None:
    """Raise LoweringError for a dtype that loops do not compute with."""
    for dtype in dtypes:
        if dtype not in LOOP_DTYPES:
            raise LoweringError(f"generated loops do not compute with {dtype}.")


def check_operands(builder: Builder, operands: Sequence[Operand]) -> torch.device:
    """The device of the result. Raises LoweringError for a dtype that loops do not compute with, and for tensors on another
    device."""
    device = builder.result().device
    for operand in operands:
        if isinstance(operand, Tensor):
            check_dtypes(operand.dtype)
            if operand.device != device:
                raise LoweringError(f"an operand is on {operand.device}, the result on {device}.")
        elif isinstance(operand, complex):
            raise LoweringError("generated loops do not compute with complex numbers.")
    return device


def elementwise(
    builder: Builder, element: Element, kind: Promotion, *operands: Operand, compute_in: torch.dtype | None = None
) -> Tensor:
    """`element` at every point of the operands' broadcast.

    It is computed in the dtype of torch's promotion rule, or in `compute_in`; the result has the traced dtype. An operand that is
    None is not promoted, and is passed as None.
    """
    device = check_operands(builder, operands)
    result = builder.result().dtype
    dtype = compute_in or builder.promote(kind, *operands)[0]
    check_dtypes(dtype, result)
    present = [wrapped(operand(o, device), dtype) for o in operands if o is not None]

    def element_at(*nodes: Node) -> Node:
        given = iter(nodes)
        return widen(element(*[None if o is None else next(given) for o in operands]), result)

    return builder.pointwise(element_at, present, dtype, result, device=device)


def operand(value: Operand, device: torch.device) -> Operand:
    """`value`; a symbolic number becomes a zero-dimensional tensor."""
    return scalar_tensor(value, device) if isinstance(value, sympy.Expr) else value


def wrapped(value: Operand, dtype: torch.dtype) -> Operand:
    """An integer operand as a number of the integer dtype `dtype`, wrapped modulo 2ⁿ as in eager."""
    if not isinstance(value, int) or dtype.is_floating_point or dtype == torch.bool:
        return value
    limits = torch.iinfo(dtype)
    return (value - limits.min) % 2**limits.bits + limits.min


def _lower_row(row: Row) -> Callable[..., Tensor]:
    def lowering(builder: Builder, *operands: Operand) -> Tensor:
        return elementwise(builder, row.element, row.kind, *operands)

    return lowering


for _row in TABLE:
    lowers(*overloads(_row.names))(_lower_row(_row))


# arithmetic with a factor ---------------------------------------------------------------------------------------------


def _lower_with_factor(name: str) -> Callable[..., Tensor]:
    def lowering(builder: Builder, a: Operand, b: Operand, alpha: Any = 1) -> Tensor:
        return elementwise(builder, lambda x, y: node(name, x, _times(alpha, y)), Promotion.DEFAULT, a, b)

    return lowering


lowers(*overloads("add.Tensor add.Scalar"))(_lower_with_factor("add"))
lowers(*overloads("sub.Tensor sub.Scalar"))(_lower_with_factor("sub"))


@lowers(*overloads("rsub.Tensor rsub.Scalar"))
def rsub(builder: Builder, a: Operand, b: Operand, alpha: Any = 1) -> Tensor:
    return elementwise(builder, lambda x, y: node("sub", y, _times(alpha, x)), Promotion.DEFAULT, a, b)


@lowers_later("prims::fma")
def fma(builder: Builder, a: Operand, b: Operand, c: Operand) -> Tensor:
    """a·b + c, which Dynamo makes of `x.addcmul_(y, z, value=v)`, `addcdiv_` and `add_` with a factor that is a tensor. torch
    registers the operator once Dynamo needs it."""
    if not all(x.dtype.is_floating_point for x in (a, b, c) if isinstance(x, Tensor)):
        raise LoweringError("a fused multiply and add of integers is left to the library.")
    return elementwise(builder, lambda x, y, z: node("fma", x, y, z), Promotion.DEFAULT, a, b, c)


def _times(factor: Any, x: Node) -> Node:
    if isinstance(factor, Tensor) or (isinstance(factor, sympy.Expr) and not factor.is_number):
        raise LoweringError("the factor alpha is known only at run time")
    if isinstance(factor, complex):
        raise LoweringError(f"the factor alpha={factor} is complex.")
    return x if factor == 1 else node("mul", like(factor, x), x)


# division -------------------------------------------------------------------------------------------------------------


@lowers(*overloads("div.Tensor_mode div.Scalar_mode"))
def div_mode(builder: Builder, a: Operand, b: Operand, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return elementwise(builder, lambda x, y: node("div", x, y), Promotion.INT_TO_FLOAT, a, b)
    result = builder.result().dtype

    def truncated(x: Node, y: Node) -> Node:
        if result in (torch.bfloat16, torch.float16):  # eager rounds the quotient before it truncates
            return node("trunc", convert(node("div", x, y), result))
        return node("truncdiv", x, y)

    return _divided(partial(node, "floordiv") if rounding_mode == "floor" else truncated)(builder, a, b)


def _divided(element: Element) -> Callable[..., Tensor]:
    """The lowering of a division. On a CPU the program checks for integer division by 0, for which eager raises an error."""

    def lowering(builder: Builder, a: Operand, b: Operand) -> Tensor:
        checked = builder.result().device.type == "cpu"
        return elementwise(builder, lambda x, y: element(x, _divisor(y) if checked else y), Promotion.DEFAULT, a, b)

    return lowering


def _divisor(y: Node) -> Node:
    known = isinstance(y, expr.Const | expr.Index) and (bounds(y, {}).at_least(ONE) or bounds(y, {}).at_most(-ONE))
    return y if known or y.dtype.is_floating_point else expr.op("check_divisor", y.dtype, y)


def _quotient(a: Node, b: Node) -> Node:
    """prims.div: true division for floats, truncating division for integers."""
    return node("div" if a.dtype.is_floating_point else "truncdiv", a, b)


for _names, _division in (
    ("fmod.Tensor fmod.Scalar prims.fmod", partial(node, "fmod")),
    ("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor prims.remainder", partial(node, "remainder")),
    ("floor_divide floor_divide.Scalar", partial(node, "floordiv")),
    ("prims.div", _quotient),
):
    lowers(*overloads(_names))(_divided(_division))


@lowers(*overloads("round.decimals"))
def round_decimals(builder: Builder, x: Tensor, decimals: int = 0) -> Tensor:
    """round(x·10ᵈ) / 10ᵈ, and round(x / 10⁻ᵈ)·10⁻ᵈ for negative d. Integers are unchanged."""

    def element(value: Node) -> Node:
        if not value.dtype.is_floating_point:
            return value
        scale = like(10.0 ** abs(decimals), value)
        before, after = ("mul", "div") if decimals >= 0 else ("div", "mul")
        return node(after, node("round", node(before, value, scale)), scale)

    return elementwise(builder, element, Promotion.DEFAULT, x)


# powers ---------------------------------------------------------------------------------------------------------------

_FLOAT_POWERS: dict[float, Element] = {
    0.0: lambda x: like(1, x),
    1.0: lambda x: x,
    2.0: lambda x: node("mul", x, x),
    3.0: lambda x: node("mul", node("mul", x, x), x),
    4.0: lambda x: integer_power(x, 4),
    0.5: lambda x: node("sqrt", x),
    -0.5: lambda x: node("rsqrt", x),
    -1.0: lambda x: node("reciprocal", x),
    -2.0: lambda x: node("reciprocal", node("mul", x, x)),
}


def integer_power(x: Node, n: int) -> Node:
    """xⁿ for n ≥ 0 by repeated squaring; wraps like integer multiplication."""
    result: Node | None = None
    while n:
        if n & 1:
            result = x if result is None else node("mul", result, x)
        x, n = (node("mul", x, x), n >> 1) if n > 1 else (x, 0)
    return like(1, x) if result is None else result


@lowers(*overloads("pow.Tensor_Scalar"))
def pow_scalar(builder: Builder, x: Tensor, exponent: Operand) -> Tensor:
    """Constant exponents become multiplications, roots and reciprocals, as in eager.

    Eager's powers of float16 on a CPU are those of C, where the roots of -∞ and -0 are +∞ and +0.
    """
    rootless = x.dtype == torch.float16 and x.device.type == "cpu"

    def element(base: Node, power: Node) -> Node:
        if rootless and isinstance(power, expr.Const) and abs(power.value) == 0.5:
            return node("pow", base, power)
        if isinstance(power, expr.Const) and power.dtype.is_floating_point and float(power.value) in _FLOAT_POWERS:
            return _FLOAT_POWERS[float(power.value)](base)
        if isinstance(power, expr.Const) and not power.dtype.is_floating_point and power.value >= 0:
            return integer_power(base, int(power.value))
        return node("pow", base, power)

    return elementwise(builder, element, Promotion.BOOL_TO_LONG, x, exponent)


@lowers(*overloads("pow.Scalar pow.Tensor_Tensor prims.pow"))
def pow_tensor(builder: Builder, base: Operand, exponent: Tensor) -> Tensor:
    def element(x: Node, power: Node) -> Node:
        if isinstance(x, expr.Const) and x.value == 1:
            return x
        if isinstance(x, expr.Const) and x.value == 2 and x.dtype.is_floating_point:
            return node("exp2", power)
        return node("pow", x, power)

    return elementwise(builder, element, Promotion.BOOL_TO_LONG, base, exponent)


# bounds and choices ---------------------------------------------------------------------------------------------------


@lowers(*overloads("clamp clamp.Tensor clip clip.Tensor"))
def clamp(builder: Builder, x: Tensor, min: Operand = None, max: Operand = None) -> Tensor:
    return elementwise(builder, _clamped, Promotion.DEFAULT, x, *_effective(x.dtype, min, max))


@lowers(*overloads("clamp_min clamp_min.Tensor"))
def clamp_min(builder: Builder, x: Tensor, min: Operand) -> Tensor:
    return clamp(builder, x, min, None)


@lowers(*overloads("clamp_max clamp_max.Tensor"))
def clamp_max(builder: Builder, x: Tensor, max: Operand) -> Tensor:
    return clamp(builder, x, None, max)


WRAPS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
"""Whether a bound outside the range of an integer dtype wraps around, as -1 becomes 255. Since torch 2.15 such a bound has no
effect."""


def _effective(dtype: torch.dtype, low: Operand, high: Operand) -> tuple[Operand, Operand]:
    """The bounds without those that an integer dtype cannot exceed. Raises LoweringError if no number is within the bounds, so
    that the operator raises its own error."""
    whole = all(isinstance(bound, int | None) for bound in (low, high))
    if WRAPS or dtype.is_floating_point or dtype == torch.bool or not whole:
        return low, high
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if (low is not None and low > most) or (high is not None and high < least):
        raise LoweringError(f"a bound that no {dtype} reaches is left to the library.")
    return None if low is None or low < least else low, None if high is None or high > most else high


def _clamped(x: Node, low: Node | None, high: Node | None) -> Node:
    """min(max(x, low), high); NaN if any of them is NaN."""
    x = x if low is None else node("maximum", x, low)
    return x if high is None else node("minimum", x, high)


@lowers(*overloads("where.self where.ScalarOther where.ScalarSelf where.Scalar prims.where"))
def where(builder: Builder, condition: Tensor, a: Operand, b: Operand) -> Tensor:
    return _choice(builder, condition, a, b)


@lowers(*overloads("masked_fill.Scalar masked_fill.Tensor"))
def masked_fill(builder: Builder, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return _choice(builder, mask, value, x)


def _choice(builder: Builder, condition: Tensor, a: Operand, b: Operand) -> Tensor:
    """a where `condition` holds, else b, in the traced result type."""
    device, dtype, out_sizes = (check_operands(builder, (condition, a, b)), builder.result().dtype, builder.result_sizes())
    check_dtypes(dtype)
    a, b = (wrapped(operand(v, device), dtype) for v in (a, b))

    def element_at(point: Point) -> Node:
        holds = widen(builder.element(condition, out_sizes, point), torch.bool)
        x, y = (widen(builder.element(v, out_sizes, point), dtype) for v in (a, b))
        return selected(holds, x, y)

    return computed(out_sizes, dtype, device, element_at)


# comparisons and logic ------------------------------------------------------------------------------------------------


def _lower_logic(name: str) -> Callable[..., Tensor]:
    def lowering(builder: Builder, *operands: Operand) -> Tensor:
        """Operands are converted to bool: nonzero is true."""
        return elementwise(builder, lambda *x: node(name, *x), Promotion.ALWAYS_BOOL, *operands, compute_in=torch.bool)

    return lowering


for _name in ("logical_and", "logical_or", "logical_xor", "logical_not"):
    lowers(*overloads(_name))(_lower_logic(_name))


# conversions ----------------------------------------------------------------------------------------------------------


@lowers(*overloads("_to_copy"))
def to_copy(
    builder: Builder, x: Operand, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
    device: torch.device | None = None, pin_memory: bool | None = None, non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:  # fmt: skip
    if builder.result().layout != torch.strided or pin_memory:
        raise LoweringError("generated loops fill only strided, unpinned memory.")
    return converted(builder, x, builder.result().dtype)


@lowers(*overloads("prims.convert_element_type"))
def convert_element_type(builder: Builder, x: Tensor, dtype: torch.dtype) -> Tensor:
    return converted(builder, x, dtype)


@lowers(*overloads("copy"))
def copy(builder: Builder, target: Tensor, source: Operand, non_blocking: bool = False) -> Tensor:
    """`source`, broadcast and converted to the sizes and dtype of `target`."""
    return converted(builder, source, target.dtype)


def converted(builder: Builder, x: Operand, dtype: torch.dtype) -> Tensor:
    """`x` broadcast to the traced sizes and converted to `dtype`; conversion to an 8- or 16-bit float rounds. A number, which
    `vmap` passes to operators in place of a tensor, counts as zero-dimensional."""
    device = builder.result().device
    check_operands(builder, () if stored_alone(x, device) else (x,))
    if not (dtype in FLOAT8 and Target.of(device).converts_float8):
        check_dtypes(dtype)
    out_sizes = builder.result_sizes()

    def element_at(point: Point) -> Node:
        value = builder.element(x, out_sizes, point)
        return convert_to(value, x.dtype if isinstance(x, Tensor) else value.dtype, dtype)

    return computed(out_sizes, dtype, device, element_at)


def stored_alone(x: Operand, device: torch.device) -> bool:
    """Whether `x` is a tensor on the device whose dtype kernels can only convert."""
    return isinstance(x, Tensor) and x.dtype in FLOAT8 and x.device == device and Target.of(device).reads_float8


def convert_to(value: Node, source: torch.dtype, dtype: torch.dtype) -> Node:
    """`value` of the tensor dtype `source`, explicitly converted to `dtype`."""
    return value if source == dtype else convert(value, dtype)
