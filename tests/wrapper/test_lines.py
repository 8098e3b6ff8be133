"""What wrappers are made of: structured lines and no text to parse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import sympy
import torch

from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.program import Assert, Input, Program
from polytile.packages.text import PackageWriter
from polytile.passes.pipeline import optimize
from polytile.wrapper import Line, backend, cpp, fx, lines, python
from polytile.wrapper.lines import Argument
from tests.passes.helpers import CPU, S0, S1, Net, layer_norm, softmax
from tests.wrapper.helpers import LibraryNet, like, lines_of

aten = torch.ops.aten


def every_kind_of_program() -> Iterator[Program]:
    net = Net()
    x, weight, bias = net.input("x", S0, S1, 64), net.input("weight", 64), net.input("bias", 64)
    yield net.program(softmax(net, layer_norm(net, x, weight, bias, 64.0)))
    library = LibraryNet()
    x = library.op("sin", library.input("x", S0, S1))
    values, indices = library.library(
        aten.sort.default, x, -1, False, like=(x, dataclasses.replace(x, dtype=torch.int64)), many=True
    )
    part = library.slice(library.op("cos", values), 1, 2)
    yield library.program(library.library(aten.gelu.default, part, like=(library.op("neg", part),)), indices)
    checked = Net()
    y = checked.op("exp", checked.input("y", S0))
    program = checked.program(y)
    check = Assert("assert0", S0 > 2, "s0 is too small")
    size = Input("k", size=sympy.Symbol("k"))
    constant = Buffer("c", torch.float32, (sympy.Integer(3),), (sympy.Integer(1),), CPU, "constant")
    yield dataclasses.replace(
        program,
        inputs=(size, *program.inputs),
        operations=(check, *program.operations),
        outputs=(*program.outputs, S0 * 2, None, whole(constant)),
        buffers={**program.buffers, "c": constant},
        constants={"c": torch.ones(3)},
    )


def texts(value: Any) -> Iterator[str]:
    """Every string anywhere in a value. Of symbols and tensors nothing is text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts(tuple(value.items()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from texts(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from texts(tuple(getattr(value, f.name) for f in dataclasses.fields(value)))


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("fused", [False, True])
def test_no_line_but_a_comment_has_text_in_it(number: int, fused: bool) -> None:
    program = list(every_kind_of_program())[number]
    inplace: dict[str, str] = {}
    if fused:
        program, inplace = optimize(program)
    found = lines_of(program, inplace)
    assert found
    for line in found:
        match line:
            case lines.Comment():
                continue
            case lines.CheckSizes():
                assert isinstance(line.condition, sympy.Basic)  # the message is what the user gets, word for word
                continue
            case lines.CallLibrary():  # a string among the arguments is one that the operator takes
                arguments = [v for v in (*line.args, *dict(line.kwargs).values()) if isinstance(v, Argument)]
                own = texts((line.result, [name for name, _ in line.kwargs], arguments))
            case lines.Allocate() | lines.Reuse() | lines.PickOutput():
                roles = {"input", "temp", "constant"}
                own = iter([text for text in texts(line) if text not in roles])
            case _:
                own = texts(line)
        assert all(text.isidentifier() for text in own), line


def test_kernels_are_objects_and_sizes_expressions() -> None:
    program = next(every_kind_of_program())
    for line in lines_of(program):
        if isinstance(line, lines.DefineKernel):
            assert callable(line.run)
        if isinstance(line, lines.CallKernel):
            assert all(isinstance(size, sympy.Expr) for size in line.sizes)


def test_each_kernel_is_defined_once_before_its_calls() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    program = net.program(net.op("sin", net.op("sin", x)))
    found = lines_of(program)
    defined = [line.name for line in found if isinstance(line, lines.DefineKernel)]
    called = {line.kernel for line in found if isinstance(line, lines.CallKernel)}
    assert len(defined) == len(set(defined)) and set(defined) == called


@pytest.mark.parametrize("writer", [python._Writer, cpp.UnitWriter, fx._Writer, PackageWriter])
def test_every_target_has_a_form_for_every_line(writer: type[lines.LineWriter]) -> None:
    kinds = {kind for kind in vars(lines).values() if isinstance(kind, type) and issubclass(kind, Line)} - {Line}
    assert set(lines._METHODS) == kinds
    assert issubclass(writer, lines.LineWriter) and not writer.__abstractmethods__


def test_operators_and_reasons_stand_in_comments() -> None:
    net = LibraryNet()
    x = net.input("x", S0)
    program = net.program(net.library(aten.sin.default, x, like=(like(x),)))
    comments = [line.text for line in lines_of(program) if isinstance(line, lines.Comment)]
    assert comments == ["aten.sin.default (library: a test wants it so)"]


# sizes ---------------------------------------------------------------------------------------------------------------


def sized(size: sympy.Expr, *inputs: Input, strides: tuple[sympy.Expr, ...] = (sympy.Integer(1),)) -> Program:
    """A program of one tensor argument of this size, that returns the symbols of the size."""
    buffer = Buffer("x", torch.float32, (size,), strides, CPU, "input")
    symbols = sorted(size.free_symbols | strides[0].free_symbols, key=str)
    return Program("sized", (*inputs, Input("x", buffer="x")), {"x": buffer}, (), tuple(symbols))


def run(program: Program, *args: Any) -> list[Any]:
    return backend("python")("sized", lines_of(program)).call(list(args))


def test_a_size_argument_arrives_under_its_own_name() -> None:
    program = sized(S0, Input("arg0_1", size=S0))
    take = next(line for line in lines_of(program) if isinstance(line, lines.TakeArguments))
    assert take.names == ("s0", "x")
    assert run(program, 5, torch.ones(5)) == [5]


def test_a_size_that_is_no_argument_is_read_from_a_tensor() -> None:
    assert run(sized(S0), torch.ones(5)) == [5]
    assert [type(line) for line in lines_of(sized(S0))][1] is lines.ReadSize


def test_a_symbol_inside_an_expression_is_solved_for() -> None:
    assert run(sized(2 * S0 + 1), torch.ones(11)) == [5]
    assert run(sized(S0 * S1, Input("arg0_1", size=S0)), 4, torch.ones(12)) == [4, 3]
    assert run(sized(S0 + 3, Input("n", size=2 * S0)), 8, torch.ones(7)) == [4]


def test_a_dynamic_stride_is_read() -> None:
    program = sized(S0, strides=(S1,))
    assert run(program, torch.ones(12)[::3]) == [4, 3]


def test_sizes_that_nothing_needs_are_not_read() -> None:
    buffer = Buffer("x", torch.float32, (S0, S1), (S1, sympy.Integer(1)), CPU, "input")
    program = Program("idle", (Input("x", buffer="x"),), {"x": buffer}, (), (S0,))
    read = [line.symbol for line in lines_of(program) if isinstance(line, lines.ReadSize)]
    assert read == [S0]


def test_a_view_that_is_a_result_is_not_freed() -> None:
    buffer = Buffer("x", torch.float32, (S0, S1), (S1, sympy.Integer(1)), CPU, "input")
    view = View("x", torch.float32, (S0,), (S1,), sympy.Integer(1))
    program = Program("views", (Input("x", buffer="x"),), {"x": buffer}, (), (view,))
    found = lines_of(program)
    assert [line.alias for line in found if isinstance(line, lines.MakeView)] == [True]
    assert not [line for line in found if isinstance(line, lines.Free)]
    x = torch.randn(3, 4)
    (column,) = run(program, x)
    assert column._base is x and torch.equal(column, x[:, 1])
