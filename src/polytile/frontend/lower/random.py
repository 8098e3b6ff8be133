"""Lowerings of random operators.

With option random="eager", numbers come from eager's own stream: the ATen call that eager makes, in graph order; only the
arithmetic around it is generated. With random="philox", kernels generate numbers from a counter. One seed per call of the program
is drawn from torch's default generator, so that manual_seed reproduces it, and each operator has a range of 2⁴⁰ counters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch

from polytile import options
from polytile.errors import LoweringError
from polytile.frontend.attention.dropout import STATE
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.overloads import overloads
from polytile.frontend.lower.pointwise import check_dtypes
from polytile.frontend.lower.pointwise_table import like, node, selected
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, convert, stored, widen
from polytile.ir import expr, sizes
from polytile.ir.buffer import View, whole
from polytile.ir.expr import Node
from polytile.ir.library_call import Ref
from polytile.ir.philox import COUNTERS_PER_OPERATOR
from polytile.ir.program import Extern
from polytile.runtime import mersenne

aten = torch.ops.aten

# Random bits of a uniform number in a 16-bit dtype, so that rounding never makes it 1.
_UNIFORM_BITS = {torch.bfloat16: 8, torch.float16: 11}


def is_drawn(target: object) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def from_counter() -> bool:
    """Whether kernels generate random numbers themselves."""
    return bool(options.get("random") == "philox")


# eager's own stream ---------------------------------------------------------------------------------------------------


def drawn(builder: Builder, like: torch.Tensor, dtype: torch.dtype, filling: Any, *values: Any) -> Tensor:
    """A new tensor with the layout of the traced `like`, filled by the operator `filling`: the call that eager makes,
    on the same elements in the same order. Raises LoweringError if a parameter of the distribution is a tensor."""
    check_dtypes(dtype)
    if any(isinstance(value, Tensor) for value in values):
        raise LoweringError("numbers of its distribution are in memory.")
    if like.device.type == "cpu" and filling is aten.bernoulli_.float:
        mersenne.prepare()
    shape = tuple(sizes.as_size(n) for n in like.shape)
    strides = tuple(sizes.as_size(n) for n in like.stride())
    reason = "random numbers come from eager's own stream"
    return _filled(builder, shape, strides, dtype, like.device, filling, values, reason)


def _overwritten(builder: Builder) -> torch.Tensor:
    """The tensor that eager fills if the current node functionalises an in-place operator: its first argument, as traced. The
    traced result instead, if the argument's elements overlap or its dtype differs."""
    assert builder.node is not None
    result, argument = builder.result(), builder.node.args[0]
    given = argument.meta["val"] if isinstance(argument, torch.fx.Node) else result
    return given if given.dtype == result.dtype and all(sizes.as_size(s) != 0 for s in given.stride()) else result


def _filled(
    builder: Builder, shape: tuple[sympy.Expr, ...], strides: tuple[sympy.Expr, ...], dtype: torch.dtype,
    device: torch.device, filling: Any, values: tuple[Any, ...], reason: str,
) -> Tensor:  # fmt: skip
    """Fresh memory, filled by calling the operator `filling` with it and `values`."""
    memory = _fresh(builder, shape, strides, dtype, device, reason)
    given = (Ref(memory), *map(builder.argument, values))
    origins = (builder.origin,)
    builder.emit(Extern(builder.name("lib"), filling, given, (), (None,), origins, reason, mutates=(memory.buffer,)))
    return stored(memory, device)


def _fresh(
    builder: Builder, shape: tuple[sympy.Expr, ...], strides: tuple[sympy.Expr, ...], dtype: torch.dtype,
    device: torch.device, reason: str,
) -> View:  # fmt: skip
    """Memory of a call's own, uninitialised, for a library call to fill."""
    buffer = builder.new_buffer(shape, dtype, device, strides)
    size, stride = ([builder.argument(n) for n in extents] for extents in (shape, strides))
    settings, origins = (("dtype", dtype), ("device", device)), (builder.origin,)
    target = aten.empty_strided.default
    builder.emit(Extern(builder.name("lib"), target, (size, stride), settings, (buffer.name,), origins, reason))
    return whole(buffer)


@lowers(*overloads("rrelu_with_noise_functional"))
def rrelu_with_noise(
    builder: Builder, x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(x·noise, noise). In training eager draws a factor for each x ≤ 0 and overwrites all of `noise`, whose old values nothing
    reads: its own kernel does so in fresh memory. Otherwise the factor is the middle, and `noise` stays as it is."""
    _require_default(generator)
    if not training:
        check_dtypes(x.dtype)
        leaky = computed(x.sizes, x.dtype, x.device, lambda point: _leaky(x.at(point), (lower + upper) / 2))
        return leaky, computed(noise.sizes, noise.dtype, noise.device, noise.at)
    traced, target = builder.result(1), aten.rrelu_with_noise.default
    shape, strides = ([sizes.as_size(n) for n in extents] for extents in (traced.shape, traced.stride()))
    reason = "random numbers come from eager's own kernel"
    memory = _fresh(builder, tuple(shape), tuple(strides), traced.dtype, traced.device, reason)
    drawn_noise = stored(memory, traced.device)
    result = builder.library(
        target, (x, drawn_noise, lower, upper, True), {}, reason, builder.result(0), mutates=(memory.buffer,)
    )
    return result, drawn_noise


def _leaky(x: Node, slope: float) -> Node:
    return selected(node("gt", x, like(0, x)), x, node("mul", x, like(slope, x)))


@lowers(*overloads("native_dropout"))
def native_dropout(builder: Builder, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """(x·noise, mask) with noise = mask / (1 - p) in the dtype of x, as eager's dropout computes it. p = 1 draws nothing."""
    check_dtypes(x.dtype)
    if not train or p == 0:
        return computed(x.sizes, x.dtype, x.device, x.at), _full_mask(x, True)
    if p == 1:
        mask = _full_mask(x, False)
    elif from_counter():
        mask = counted_bernoulli(builder, x.sizes, torch.bool, x.device, 1 - p)
    elif x.device.type == "cpu":
        mask = drawn(builder, builder.result(1), torch.bool, aten.bernoulli_.float, 1 - p)
    else:
        raise LoweringError(f"on {x.device.type} eager draws dropout masks inside its own kernel.")
    return _dropped(x, mask, p), mask


def _dropped(x: Tensor, mask: Tensor, p: float) -> Tensor:
    def element_at(point: Point) -> Node:
        value = x.at(point)
        kept = like(0, value) if p == 1 else convert(node("div", like(1, value), like(1 - p, value)), x.dtype)
        return node("mul", value, selected(mask.at(point), kept, like(0, value)))

    return computed(x.sizes, x.dtype, x.device, element_at)


@lowers(STATE)
def dropout_state(builder: Builder, shape: list[Any], threads: int, *, device: torch.device) -> Tensor:
    """Seed and offset of numbers that attention draws inside its kernels, whatever the option is."""
    buffer, reason = builder.new_buffer((sizes.as_size(2),), torch.int64, device), "where eager's random numbers of dropout begin"
    extents = [builder.argument(sizes.as_size(n)) for n in shape]
    settings = (("device", device),)
    builder.emit(
        Extern(builder.name("lib"), STATE, (extents, threads), settings, (buffer.name,), (builder.origin,), reason)
    )
    return stored(whole(buffer), device)


def _full_mask(x: Tensor, value: bool) -> Tensor:
    return computed(x.sizes, torch.bool, x.device, lambda _: expr.const(value, torch.bool))


@lowers(*overloads("bernoulli.p"))
def bernoulli_p(builder: Builder, x: Tensor, p: float = 0.5, generator: Any = None) -> Tensor:
    """0 and 1 in the dtype of `x`, whose values are not read.

    The graph has this operator both for `torch.bernoulli(x, p)`, whose result is row-major in eager, and for every `bernoulli_`.
    """
    _require_default(generator)
    result = builder.result()
    check_dtypes(result.dtype)
    if from_counter():
        return counted_bernoulli(builder, x.sizes, result.dtype, x.device, p)
    like = result if _called(builder) in (None, torch.bernoulli, "bernoulli") else _overwritten(builder)
    return drawn(builder, like, result.dtype, aten.bernoulli_.float, p)


def _called(builder: Builder) -> Any:
    """The function or method name in the user's program from which the current node comes; None if unknown."""
    stack = builder.node.meta.get("source_fn_stack") if builder.node is not None else None
    return stack[-1][1] if stack else None


def _require_default(generator: Any) -> None:
    if generator is not None:
        raise LoweringError("a generator was given: its own stream is the library's to draw from.")


# numbers from a counter -----------------------------------------------------------------------------------------------


def counter(builder: Builder, out_sizes: tuple[sympy.Expr, ...], device: torch.device) -> Callable[[Point], tuple[Node, Node]]:
    """point → (seed, offset) for a new operator whose result has `out_sizes`. The first one of a program draws the seed."""
    if builder.seed not in builder.buffers:  # none has been drawn, or by a lowering that failed
        builder.seed = _seed(builder, device)
    seed = builder.seed
    first = builder.counted * COUNTERS_PER_OPERATOR
    builder.counted += 1
    strides = sizes.contiguous_strides(out_sizes)

    def counter_at(point: Point) -> tuple[Node, Node]:
        number = sum((i * s for i, s in zip(point, strides, strict=True)), sympy.Integer(first))
        return expr.load(torch.int64, seed, sizes.ZERO), expr.index_value(number)

    return counter_at


def _seed(builder: Builder, device: torch.device) -> str:
    """The buffer of one int64 from the default generator. On a GPU, no kernel is launched to draw it."""
    one, reason = (sizes.ONE,), "one seed for the kernels' own random numbers"
    if device.type != "cuda":
        seed = _filled(builder, one, one, torch.int64, device, aten.random_.default, (), reason)
        assert seed.view is not None
        return seed.view.buffer
    from polytile.runtime.cuda.seeds import next_seed

    buffer = builder.new_buffer(one, torch.int64, device)
    builder.emit(Extern(builder.name("lib"), next_seed, (device,), (), (buffer.name,), (builder.origin,), reason))
    return buffer.name


def counted(builder: Builder, name: str, draw: torch.dtype, element: Callable[[Node, Point], Node]) -> Tensor:
    """A tensor like the traced result with elements `element(number, point)`, where the operation `name` draws `number`
    in dtype `draw`. Raises LoweringError if numbers come from eager's own stream."""
    if not from_counter():
        raise LoweringError("random numbers come from eager's own stream (option random='eager').")
    result, out_sizes = builder.result(), builder.result_sizes()
    check_dtypes(result.dtype)
    counter_at = counter(builder, out_sizes, result.device)
    return computed(
        out_sizes,
        result.dtype,
        result.device,
        lambda point: widen(element(expr.op(name, draw, *counter_at(point)), point), result.dtype),
    )


def counted_bernoulli(
    builder: Builder, out_sizes: tuple[sympy.Expr, ...], dtype: torch.dtype, device: torch.device, p: float
) -> Tensor:
    """1 with probability `p`, else 0."""
    counter_at = counter(builder, out_sizes, device)

    def element(point: Point) -> Node:
        u = expr.op("philox_uniform", torch.float32, *counter_at(point))
        return widen(node("lt", u, like(p, u)), dtype)

    return computed(out_sizes, dtype, device, element)


def uniform_number(dtype: torch.dtype) -> Callable[[Node, Point], Node]:
    """A number in [0, 1) that `dtype` represents exactly."""

    def element(u: Node, _: Point) -> Node:
        if dtype not in _UNIFORM_BITS:
            return u
        steps = like(2.0 ** _UNIFORM_BITS[dtype], u)
        return node("div", node("floor", node("mul", u, steps)), steps)

    return element


def _real(builder: Builder) -> torch.dtype:
    """The floating-point dtype in which numbers for the current node are drawn."""
    return torch.float64 if builder.result().dtype == torch.float64 else torch.float32


def _drawn_alike(builder: Builder, filling: Any, *values: Any) -> Tensor:
    """The numbers with which eager fills the result of the current node."""
    if builder.node is not None and builder.node.kwargs.get("pin_memory"):
        raise LoweringError("its result is wanted in pinned memory.")
    return drawn(builder, builder.result(), builder.result().dtype, filling, *values)


@lowers(*overloads("rand rand_like"))
def rand(builder: Builder, *arguments: Any, **settings: Any) -> Tensor:
    if not from_counter():
        return _drawn_alike(builder, aten.uniform_.default)
    return counted(builder, "philox_uniform", _real(builder), uniform_number(builder.result().dtype))


@lowers(*overloads("randn randn_like"))
def randn(builder: Builder, *arguments: Any, **settings: Any) -> Tensor:
    if not from_counter():
        return _drawn_alike(builder, aten.normal_.default)
    return counted(builder, "philox_normal", _real(builder), lambda z, _: z)


def _drawn_over(builder: Builder, filling: Any, *values: Any) -> Tensor:
    """The numbers with which eager overwrites the first argument of the current node."""
    return drawn(builder, _overwritten(builder), builder.result().dtype, filling, *values)


def _lower_overwriting(filling: Any) -> Callable[..., Tensor]:
    def lowering(builder: Builder, x: Tensor, *values: Any, generator: Any = None) -> Tensor:
        _require_default(generator)
        return _drawn_over(builder, filling, *values)

    return lowering


for _name in ("exponential", "geometric", "cauchy", "log_normal", "random", "random.from", "random.to"):
    _packet, _, _overload = _name.partition(".")
    lowers(*overloads(_name))(_lower_overwriting(getattr(getattr(aten, f"{_packet}_"), _overload or "default")))


@lowers(*overloads("bernoulli"))
def bernoulli(builder: Builder, p: Tensor, generator: Any = None) -> Tensor:
    _require_default(generator)
    return counted(
        builder,
        "philox_uniform",
        torch.float32,
        lambda u, point: widen(node("lt", u, widen(p.at(point), torch.float32)), p.dtype),
    )


@lowers(*overloads("uniform"))
def uniform(builder: Builder, x: Tensor, low: float = 0.0, high: float = 1.0, generator: Any = None) -> Tensor:
    _require_default(generator)
    if not from_counter():
        return _drawn_over(builder, aten.uniform_.default, low, high)
    unit = uniform_number(builder.result().dtype)

    def element(u: Node, point: Point) -> Node:
        return node("add", node("mul", unit(u, point), like(high - low, u)), like(low, u))

    return counted(builder, "philox_uniform", _real(builder), element)


@lowers(*overloads("normal_functional"))
def normal(builder: Builder, x: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    _require_default(generator)
    if not from_counter():
        return _drawn_over(builder, aten.normal_.default, mean, std)
    return counted(
        builder, "philox_normal", _real(builder), lambda z, _: node("add", node("mul", z, like(std, z)), like(mean, z))
    )


def _lower_randint(bounds: Callable[..., tuple[int, int]]) -> Callable[..., Tensor]:
    def lowering(builder: Builder, *arguments: Any, **settings: Any) -> Tensor:
        """low + n mod (high - low) of a 63-bit number n: no range of 2³² or less is uneven by more than one part in
        2³¹."""
        low, high = bounds(*arguments)
        if not from_counter():
            return _drawn_alike(builder, getattr(aten.random_, "from"), low, high)
        if not all(isinstance(v, int) for v in (low, high)):
            raise LoweringError("the bounds of randint are not numbers.")

        def element(n: Node, _: Point) -> Node:
            return node("add", node("remainder", n, like(high - low, n)), like(low, n))

        return counted(builder, "philox_int", torch.int64, element)

    return lowering


lowers(*overloads("randint"))(_lower_randint(lambda high, *_: (0, high)))
lowers(*overloads("randint.low"))(_lower_randint(lambda low, high, *_: (low, high)))
lowers(*overloads("randint_like"))(_lower_randint(lambda x, high, *_: (0, high)))
lowers(*overloads("randint_like.low_dtype"))(_lower_randint(lambda x, low, high, *_: (low, high)))
