"""What every target of the wrapper does alike: Python, C and FX."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
import pytest
import sympy
import torch
from torch.utils._sympy.functions import (
    CeilToInt,
    FloorDiv,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    ToFloat,
    TruncToInt,
)

from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.library_call import Ref
from polytile.ir.program import Assert, Extern, Input, Program
from polytile.passes.pipeline import optimize
from polytile.wrapper import lines
from polytile.wrapper.lines import Argument
from tests.passes.helpers import CPU, S0, S1, Net, arguments
from tests.wrapper.helpers import TARGETS, LibraryNet, like, wrapped, written
from tests.wrapper.test_memory import programs

aten = torch.ops.aten
ONE, THREE = sympy.Integer(1), sympy.Integer(3)


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_call_empties_the_list_of_arguments(target: str) -> None:
    made = written("test", (lines.TakeArguments(("x",)), lines.Return(("x",))), target)
    args = [torch.ones(2)]
    assert made.call(args)[0].sum() == 2 and args == []


def test_a_check_that_fails_raises_its_message(target: str) -> None:
    net = Net()
    program = net.program(net.op("sin", net.input("x", S0)))
    checked = replace(program, operations=(Assert("check", S0 > 2, "s0 must be 3 or more"), *program.operations))
    run = wrapped(checked, target=target).call
    assert run([torch.ones(3)])[0].shape == (3,)
    with pytest.raises(RuntimeError, match="s0 must be 3 or more"):
        run([torch.ones(2)])


def test_constants_are_the_graphs_own_tensors(target: str) -> None:
    constant = Buffer("c", torch.float32, (THREE,), (ONE,), CPU, "constant")
    held = torch.arange(3.0)
    program = Program("constant", (), {"c": constant}, (), (whole(constant),), {"c": held})
    assert wrapped(program, target=target).call([])[0] is held


def test_a_size_that_only_the_run_tells_is_taken_from_a_result(target: str) -> None:
    u0 = sympy.Symbol("u0", integer=True, nonnegative=True)
    x = Buffer("x", torch.float32, (S0,), (ONE,), CPU, "input")
    found = Buffer("buf0", torch.int64, (u0, ONE), (ONE, ONE), CPU)
    call = Extern(
        "lib0", aten.nonzero.default, (Ref(whole(x)),), (), ("buf0",), ("nonzero",), "", ((u0, ("size", 0, 0)),)
    )
    program = Program("unbacked", (Input("x", buffer="x"),), {"x": x, "buf0": found}, (call,), (whole(found), u0 + 1))
    indices, size = wrapped(program, target=target).call([torch.tensor([1.0, 0.0, 2.0])])
    assert indices.tolist() == [[0], [2]] and size == 3


def test_a_number_is_taken_from_a_result(target: str) -> None:
    u0 = sympy.Symbol("u0", integer=True)
    x = Buffer("x", torch.int64, (), (), CPU, "input")
    item = Extern(
        "lib0", lambda t: (t + 1, t.item()), (Ref(whole(x)),), (), (None, None), (), "", ((u0, ("item", 1)),), many=True
    )
    program = Program("item", (Input("x", buffer="x"),), {"x": x}, (item,), (u0 * 2,))
    assert wrapped(program, target=target).call([torch.tensor(21)]) == [42]


def test_results_of_lists_are_picked_by_number(target: str) -> None:
    net = LibraryNet()
    x = net.input("x", S0, 4)
    one = like(x, sizes=(S0, sympy.Integer(2)), strides=(sympy.Integer(4), ONE))
    first, second = net.library(aten.split.Tensor, x, 2, 1, like=(one, one), many=True)
    (alone,) = net.library(lambda t: [t + 1], x, like=(x,), many=True)
    program = net.program(net.op("add", first, second), alone)
    a = torch.randn(3, 4)
    total, more = wrapped(program, target=target).call([a])
    torch.testing.assert_close(total, a[:, :2] + a[:, 2:])
    torch.testing.assert_close(more, a + 1)


def test_a_call_for_its_effect_alone_has_no_result(target: str) -> None:
    x = Buffer("x", torch.float32, (S0,), (ONE,), CPU, "input")
    fill = Extern("lib0", aten.fill_.Scalar, (Ref(whole(x)), 3.0), (), (None,), (), "", mutates=("x",))
    program = Program("fill", (Input("x", buffer="x"),), {"x": x}, (fill,), ())
    given = torch.zeros(2)
    assert wrapped(program, target=target).call([given]) == []
    assert given.tolist() == [3.0, 3.0]


def test_bits_read_as_another_type_of_the_same_width(target: str) -> None:
    x = Buffer("x", torch.float32, (S0, S1), (S1, ONE), CPU, "input")
    view = View("x", torch.int32, (S1,), (ONE,), S1)
    program = Program("bits", (Input("x", buffer="x"),), {"x": x}, (), (view,))
    given = torch.randn(3, 4)
    (bits,) = wrapped(program, target=target).call([given])
    assert bits.dtype == torch.int32 and torch.equal(bits, given.view(torch.int32)[1])
    assert bits.data_ptr() == given[1].data_ptr()




@pytest.mark.parametrize("value", [3, -(2**40), 2.5, True, (2, 0), "floor"])
def test_numbers_and_other_objects_pass_through(target: str, value: object) -> None:
    z = sympy.Symbol("zf0", real=True)
    call = lines.CallLibrary("r0", lambda *args: args, (Argument("x"), Argument(z), value), ())
    made = written("objects", (lines.TakeArguments(("x", "zf0")), call, lines.Return(("r0", z * 2, None))), target)
    x = torch.ones(2)
    (back, *rest), doubled, nothing = made.call([x, 1.25])
    assert back is x and rest == [1.25, value] and doubled == 2.5 and nothing is None


def test_sizes_are_computed_alike(target: str) -> None:
    sizes = [2 * S0 + 1, FloorDiv(S0 * S1, 3) * 2, Mod(S0, 4), Max(S0, 5, S1), PowByNatural(S0, 2), S0**2]
    sizes += [ModularIndexing(S0, 2, 3), TruncToInt(1.7 * ToFloat(S0)), CeilToInt(IntTrueDiv(S0, 2)), sympy.Integer(-3)]
    sizes += [FloorDiv(S0 - 12, S1), Min(S0, S1)]
    sizes += [sympy.Lt(S0, 9), sympy.Eq(S0, 7), 0.5 * ToFloat(S0)]
    got = written("sizes", (lines.TakeArguments(("s0", "s1")), lines.Return(tuple(sizes))), target).call([7, 4])
    assert got == [15, 18, 3, 7, 49, 49, 0, 11, 4, -3, -2, 4, True, True, 3.5]


def test_conditions_are_checked_alike(target: str) -> None:
    condition = sympy.And(sympy.Or(S0 > 2, sympy.Eq(S1, 1)), sympy.Ne(Mod(S0, 5), 0))
    check = lines.CheckSizes(condition, "not these sizes", ValueError)
    call = written("checked", (lines.TakeArguments(("s0", "s1")), check, lines.Return((S0,))), target).call
    assert call([3, 7]) == [3] and call([1, 1]) == [1]
    for bad in ([2, 2], [5, 1]):
        with pytest.raises(ValueError, match="not these sizes"):
            call(bad)


def test_a_kernel_that_raises_ends_the_call_and_frees_what_there_is(target: str) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    def fails(x: torch.Tensor, out: torch.Tensor, n: int) -> None:
        seen.extend([weakref.ref(x), weakref.ref(out)])
        raise ZeroDivisionError(f"on purpose, at {n}")

    buffer = Buffer("buf0", torch.float32, (S0,), (ONE,))
    kernel = lines.DefineKernel("kernel", fails), lines.CallKernel("kernel", ("x", "buf0"), (S0,))
    take = lines.TakeArguments(("s0", "x"))
    made = written("fails", (kernel[0], take, lines.Allocate(buffer), kernel[1], lines.Return(("buf0",))), target)
    args = [3, torch.ones(3)]
    with pytest.raises(ZeroDivisionError, match="on purpose, at 3"):
        made.call(args)
    gc.collect()
    assert args == [] and [one() for one in seen] == [None, None]


def test_memory_that_cannot_be_had_is_an_error_of_torch(target: str) -> None:
    buffer = Buffer("buf0", torch.float32, (S0,), (ONE,))
    given = lines.TakeArguments(("s0",)), lines.Allocate(buffer), lines.Return(("buf0",))
    call = written("large", given, target).call
    with pytest.raises(RuntimeError, match="memory|bytes"):
        call([2**58])
    assert call([2])[0].shape == (2,)


def test_views_of_arguments_are_views_for_autograd(target: str) -> None:
    x = Buffer("x", torch.float32, (S0, S1), (S1, ONE), CPU, "input")
    program = Program("alias", (Input("x", buffer="x"),), {"x": x}, (), (View("x", torch.float32, (S1,), (ONE,), S1), whole(x)))
    given = torch.randn(3, 4)
    row, same = wrapped(program, target=target).call([given])
    assert same is given and row._is_view() and row._base is given and torch.equal(row, given[1])


def test_tensors_without_elements_and_dimensions(target: str) -> None:
    net = Net()
    program = net.program(net.op("sin", net.op("cos", net.input("x", S0, S1))), net.op("neg", net.input("y")))
    run = wrapped(program, target=target).call
    y = torch.tensor(2.0)
    for shape in ((0, 3), (3, 0), (2, 3)):
        x = torch.randn(shape)
        first, second = run([x, y])
        torch.testing.assert_close(first, x.cos().sin())
        assert second == -2 and second.shape == ()


@hypothesis.given(programs(), st.sampled_from([(2, 3), (3, 2), (1, 5)]), st.booleans())
@hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck), max_examples=20)
@pytest.mark.parametrize("other", ["cpp", "fx"])
def test_any_program_does_what_pythons_wrapper_does(other: str, program: Program, extents: tuple[int, int], fused: bool) -> None:
    inplace: dict[str, str] = {}
    if fused:
        program, inplace = optimize(program)
    values = dict(zip((S0, S1), extents, strict=True))
    want_args, got_args = arguments(program, values), arguments(program, values)
    kept, right = list(got_args), list(want_args)
    made = wrapped(program, inplace, other)
    want, got = wrapped(program, inplace).call(want_args), made.call(got_args)
    assert got_args == []
    for mine, theirs in zip((*got, *kept), (*want, *right), strict=True):
        assert (mine.shape, mine.stride()) == (theirs.shape, theirs.stride()), made.source
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{m}\n{made.source}")
