"""A small driver for the tests of single lowerings: traces a function with symbolic sizes and lowers it to a Program.

`lower(fn, *args)` gives the Program, `check(fn, *args)` also runs it through the reference interpreter and compares
with eager. With POLYTILE_TEST_DEVICE=cuda in the environment the function is instead compiled and run on the GPU, and
compared with eager there (`make test-gpu`); with POLYTILE_TEST_DEVICE=cpu it is compiled and run on the CPU.
"""

from __future__ import annotations

import importlib
import operator
import os
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sympy
import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx

from polytile.errors import LoweringError
from polytile.frontend import lower as lowerings
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.decompositions import decompositions
from polytile.frontend.lower.registry import TABLE
from polytile.frontend.lower.value import Tensor, stored
from polytile.ir import sizes
from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.program import Extern, Input, Program

DEVICE = os.environ.get("POLYTILE_TEST_DEVICE", "cpu")
COMPILES = "POLYTILE_TEST_DEVICE" in os.environ
"""Functions are compiled and run on DEVICE; else lowered programs go through the interpreter."""

COMPILED = {torch.float32: 2e-5, torch.float64: 1e-9, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Absolute and relative tolerance of compiled results by type, at least."""


def trace(fn: Callable[..., Any], *args: Any, symbolic: bool = True) -> torch.fx.GraphModule:
    """`fn` as a functional graph of decomposed ATen operators; `args` are tensors and ints."""

    def of_these(*args: Any) -> Any:  # as many parameters as arguments, whatever the defaults of `fn`
        return fn(*args)

    mode = "symbolic" if symbolic else "fake"
    graph = make_fx(of_these, tracing_mode=mode, decomposition_table=decompositions())(*args)
    if any(isinstance(n.target, OpOverload) and n.target._schema.is_mutable for n in graph.graph.nodes):
        functional = torch.func.functionalize(graph, remove="mutations")
        graph = make_fx(functional, tracing_mode=mode, decomposition_table=decompositions())(*args)
    graph.graph.eliminate_dead_code()
    return graph


def lower(fn: Callable[..., Any], *args: Any, symbolic: bool = True) -> Program:
    """The Program of `fn`; an operator without a lowering, or one that declines its arguments, becomes a library
    call."""
    return lower_graph(trace(fn, *args, symbolic=symbolic))


def lower_graph(graph: torch.fx.GraphModule) -> Program:
    for module in pkgutil.iter_modules(lowerings.__path__):
        importlib.import_module(f"{lowerings.__name__}.{module.name}")
    builder = Builder()
    inputs: list[Input] = []
    constants: dict[str, torch.Tensor] = {}
    env: dict[torch.fx.Node, Any] = {}
    outputs: tuple[Any, ...] = ()
    for node in graph.graph.nodes:
        builder.node = node
        value = node.meta.get("val")
        if node.op == "placeholder":
            env[node] = _placeholder(builder, node, inputs)
        elif node.op == "get_attr":
            constants[node.name] = getattr(graph, node.target)
            env[node] = _named(builder, node.name, constants[node.name], "constant")
        elif node.op == "output":
            outputs = tuple(_output(builder, env, n) for n in _flat(node.args[0]))
        elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            env[node] = sizes.as_size(value)
        elif node.target is operator.getitem:
            env[node] = env[node.args[0]][node.args[1]]
        else:
            env[node] = _call(
                builder, node, torch.fx.map_arg(node.args, env.get), torch.fx.map_arg(node.kwargs, env.get)
            )
    return Program("test", tuple(inputs), builder.buffers, tuple(builder.operations), outputs, constants)


def _call(builder: Builder, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    args = tuple(_plain(a) for a in args)
    kwargs = {k: _plain(v) for k, v in kwargs.items()}
    lowering = TABLE.get(node.target)
    if lowering is None:
        return builder.library(node.target, args, kwargs, f"{node.target} has no lowering")
    done = len(builder.operations)
    try:
        return lowering(builder, *args, **kwargs)
    except LoweringError as error:
        del builder.operations[done:]
        return builder.library(node.target, args, kwargs, str(error))


def _plain(value: Any) -> Any:
    """FX's immutable lists and dicts as plain ones."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    return value


def _placeholder(builder: Builder, node: torch.fx.Node, inputs: list[Input]) -> Any:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        size = sizes.as_size(value) if value is not None else None
        inputs.append(Input(node.name, size=size))
        return size
    inputs.append(Input(node.name, buffer=node.name))
    return _named(builder, node.name, value, "input")


def _named(builder: Builder, name: str, value: torch.Tensor, role: str) -> Tensor:
    shape = tuple(sizes.as_size(n) for n in value.shape)
    strides = tuple(sizes.as_stride(n) for n in value.stride())
    builder.buffers[name] = Buffer(name, value.dtype, shape, strides, value.device, role)
    return stored(whole(builder.buffers[name]), value.device)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _output(builder: Builder, env: dict[torch.fx.Node, Any], node: Any) -> View | sympy.Expr | None:
    value = env.get(node) if isinstance(node, torch.fx.Node) else node
    if not isinstance(value, Tensor):
        return value
    meta = node.meta["val"]
    strides = tuple(sizes.as_stride(n) for n in meta.stride())
    if value.view is None or value.view.strides != strides:
        value = builder.realize(value, strides)
    return value.view


def library_calls(program: Program) -> list[str]:
    """The operators that became library calls."""
    return [str(op.target) for op in program.operations if isinstance(op, Extern)]


def run(program: Program, args: list[Any]) -> list[Any]:
    from tests import interpret

    return interpret.run(program, args)


def check(
    fn: Callable[..., Any], *args: Any, library: bool = False, rtol: float | None = None, atol: float | None = None
) -> Program:
    """Lowers `fn`, runs the Program on `args` (sizes of 2 and more are symbolic) and compares values, types, sizes and
    strides with eager. Unless `library`, no operator may have become a library call."""
    program = lower(fn, *args)
    if not library:
        assert library_calls(program) == [], library_calls(program)
    if COMPILES:
        check_compiled(fn, args, rtol, atol)
        return program
    torch.manual_seed(0)
    expected = _flat(fn(*args))
    torch.manual_seed(0)
    got = run(program, list(args))
    assert len(got) == len(expected)
    for k, (mine, eager) in enumerate(zip(got, expected, strict=True)):
        _compare(mine, eager, f"output {k}", rtol, atol)
    return program


def check_each(
    functions: Mapping[str, Callable[..., Any]],
    *args: Any,
    tolerances: Mapping[torch.dtype, float] | None = None,
    library: bool = False,
) -> None:
    """`check` of all the functions in one program, of those that eager has for `args` at all; a failure names its function.
    `tolerances`: absolute and relative by result type, 0 for types not given."""
    able = {name: fn for name, fn in functions.items() if _works(fn, *args)}
    assert able, "eager has none of these operators for these arguments"
    program = lower(lambda *a: tuple(fn(*a) for fn in able.values()), *args)
    if not library:
        assert library_calls(program) == [], library_calls(program)
    if COMPILES:
        check_compiled(lambda *a: tuple(fn(*a) for fn in able.values()), args, names=list(able))
        return
    got = run(program, list(args))
    for (name, fn), mine in zip(able.items(), got, strict=True):
        eager = fn(*args)
        tolerance = (tolerances or {}).get(eager.dtype, 0.0)
        _compare(mine, eager, name, tolerance, tolerance)


def check_compiled(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    rtol: float | None = None,
    atol: float | None = None,
    names: list[str] | None = None,
) -> None:
    """Compiles `fn`, runs it on DEVICE and compares with eager there; all outputs that differ are named at once."""
    there = [arg.to(DEVICE) if isinstance(arg, torch.Tensor) else arg for arg in args]
    there = [a.as_strided(b.shape, b.stride()) if _strided(b) else a for a, b in zip(there, args, strict=True)]
    torch.manual_seed(0)
    try:
        expected = _flat(fn(*there))
    except torch.AcceleratorError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"eager refuses on {DEVICE}: {error}")
    torch.manual_seed(0)
    got = _flat(torch.compile(fn, backend="polytile", dynamic=True)(*there))
    wrong = []
    for k, (mine, eager) in enumerate(zip(got, expected, strict=True)):
        least = COMPILED.get(eager.dtype, 0.0) if isinstance(eager, torch.Tensor) else 0.0
        try:
            _compare(mine, eager, names[k] if names else f"output {k}", max(rtol or 0, least), max(atol or 0, least))
        except AssertionError as error:
            wrong.append(" ".join(str(error).split())[:200])
    assert not wrong, "; ".join(wrong)


def _strided(value: Any) -> bool:
    """Whether a tensor has strides of its own that a copy to a device would lose, and memory to have them in."""
    if not isinstance(value, torch.Tensor):
        return False
    dense = torch.empty_like(value, device="meta").stride() == value.stride()
    span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return not dense and span <= value.numel()


def _works(fn: Callable[..., Any], *args: Any) -> bool:
    try:
        fn(*args)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


def _compare(mine: Any, eager: Any, what: str, rtol: float | None, atol: float | None) -> None:
    if not isinstance(eager, torch.Tensor):
        assert mine == eager, (what, mine, eager)
        return
    if eager.numel():
        assert mine.stride() == eager.stride(), (what, mine.stride(), eager.stride())
    torch.testing.assert_close(mine, eager, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}")


def agrees(program: Program, fn: Callable[..., Any], *args: Any) -> None:
    """Checks the first result of a program on arguments of other sizes than those it was traced with."""
    torch.testing.assert_close(run(program, list(args))[0], fn(*args), equal_nan=True)
