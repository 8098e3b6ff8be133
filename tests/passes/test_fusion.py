"""Which loops become one, and which may not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import sympy
import torch

from polytile.frontend.lower.value import Point, Tensor, computed
from polytile.ir import expr, levels, sizes
from polytile.ir.buffer import Buffer, whole
from polytile.ir.expr import Node, Op
from polytile.ir.library_call import Ref
from polytile.ir.loop import Loop, Store
from polytile.ir.program import Extern, Input, Program
from polytile.passes.fusion.broadcasts import store_broadcasts
from polytile.passes.fusion.graph import Graph
from polytile.passes.fusion.horizontal import fuse_horizontally
from polytile.passes.fusion.inline import inline_cheap
from polytile.passes.fusion.merge import MAX_BUFFERS, MAX_NODES, Unfit, merge
from polytile.passes.fusion.vertical import fuse_vertically
from polytile.passes.pipeline import optimize
from tests.passes.helpers import BF16, CPU, F32, I64, S0, S1, S2, Net, assert_same, kinds, layer_norm, loop_of, softmax

EXTENTS = {S0: 3, S1: 5, S2: 4}


def fused(net: Net, *outputs: Tensor, rule: Callable[[Program], Program] = fuse_vertically) -> Program:
    """The program after fusion, checked to mean the same."""
    before = net.program(*outputs)
    after = rule(before)
    assert_same(before, after, EXTENTS)
    return after


# what fuses vertically ---------------------------------------------------------------------------------------------------


def test_pointwise_into_pointwise() -> None:
    net = Net()
    x = net.op("exp", net.input("x", S0, S1))
    after = fused(net, net.op("sin", net.op("neg", x)))
    assert len(after.operations) == 1
    assert loop_of(after).reads() == {"x"}


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_pointwise_into_a_reduction_over_any_dimensions(dims: tuple[int, ...]) -> None:
    net = Net()
    x = net.op("exp", net.input("x", S0, S1, S2))
    assert len(fused(net, net.reduce("sum", x, *dims)).operations) == 1


def test_pointwise_into_a_reduction_that_looks_at_it_transposed_and_reshaped() -> None:
    net = Net()
    x = net.op("exp", net.input("x", S0, S1, S2))
    total = net.reduce("sum", net.permute(net.view(x, S0 * S1, S2), 1, 0), 1)
    after = fused(net, total)
    assert len(after.operations) == 1
    assert not any(index.atoms(sympy.Function) for n in expr.walk(*loop_of(after).roots) for index in n.indices)


def test_a_reductions_result_into_work_on_the_same_rows() -> None:
    net = Net()
    mean = net.op("div", net.reduce("sum", net.input("x", S0, S1), 1), 7.0)
    assert len(fused(net, net.op("sqrt", net.op("abs", mean))).operations) == 1


def test_a_reductions_result_into_the_elements_it_came_from() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    after = fused(net, net.op("sub", x, net.reduce("max", x, 1, keepdim=True)))
    assert len(after.operations) == 1
    assert [str(a.size) for a in loop_of(after).reduced] == ["s1"]


def test_column_statistics_into_the_elements_they_came_from() -> None:
    net = Net()
    x = net.input("x", S0, S1, S2)
    after = fused(net, net.op("sub", x, net.reduce("sum", x, 0, 2, keepdim=True)))
    assert len(after.operations) == 1
    assert [str(a.size) for a in loop_of(after).axes] == ["s1"]


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_softmax_is_one_loop_with_nested_reductions(dtype: torch.dtype) -> None:
    net = Net()
    after = fused(net, softmax(net, net.input("x", S0, S1, dtype=dtype)))
    assert len(after.operations) == 1
    assert levels.depth(*loop_of(after).roots) == 2


def test_layer_norm_is_one_loop() -> None:
    net = Net()
    x, weight, bias = net.input("x", S0, S1), net.input("weight", S1), net.input("bias", S1)
    assert len(fused(net, layer_norm(net, x, weight, bias, 5.0)).operations) == 1


def test_a_value_with_a_costly_history_is_stored_once_and_read_by_the_others() -> None:
    """One consumer takes the producer in; its store stays for the other."""
    net = Net()
    x = net.op("exp", net.input("x", S0, S1))
    after = fused(net, net.reduce("sum", x, 0), net.reduce("sum", x, 1))
    assert len(after.operations) == 2
    costs = [
        sum(isinstance(n, expr.Op) and n.name == "exp" for n in expr.walk(*loop_of(after, k).roots)) for k in (0, 1)
    ]
    assert sorted(costs) == [0, 1]


def test_a_fused_value_is_rounded_as_its_buffer_would_round_it() -> None:
    """A bfloat16 temporary whose value was not rounded by the lowering is rounded where it is passed on."""
    net = Net()
    x = net.input("x", S0, S1, dtype=BF16)
    squares = net.map(lambda v: expr.op("mul", F32, v, v), x, dtype=BF16)  # no rounding in the value
    after = fused(net, net.map(lambda v: expr.op("mul", F32, v, v), squares, dtype=BF16))
    assert any(isinstance(n, expr.Op) and n.name == "round_bf16" for n in expr.walk(*loop_of(after).roots))


def test_work_at_the_same_point_as_a_scan() -> None:
    net = Net()
    after = fused(net, net.op("exp", net.scan(net.op("neg", net.input("x", S0, S1)))))
    assert len(after.operations) == 1


def test_an_update_of_an_input_stays_in_the_fused_loop() -> None:
    net = Net()
    x, running = net.input("x", S0, S1), net.input("running", S0)
    mean = net.reduce("sum", x, 1)
    net.write(running, net.op("add", net.op("mul", running, 0.9), mean))
    after = fused(net, net.op("mul", mean, 2.0))
    assert any("running" in o.writes() for o in after.operations)


# what does not -----------------------------------------------------------------------------------------------------------


def test_a_consumer_that_reads_another_element_does_not_fuse() -> None:
    net = Net()
    x = net.op("exp", net.input("x", S0, S0))
    after = fused(net, net.op("add", x, net.permute(x, 1, 0)))
    assert len(after.operations) == 2


def test_a_scan_does_not_fuse_into_a_reduction() -> None:
    net = Net()
    assert len(fused(net, net.reduce("sum", net.scan(net.input("x", S0, S1)), 1)).operations) == 2


def test_a_reduction_does_not_fuse_into_a_reduction_over_its_rows() -> None:
    net = Net()
    assert len(fused(net, net.reduce("max", net.reduce("sum", net.input("x", S0, S1), 1), 0)).operations) == 2


def test_rows_and_elements_of_unrelated_tensors_do_not_fuse() -> None:
    """The reduced axis of one and the inner axis of the other have equal sizes, but nothing says they are the same points."""
    net = Net()
    total = net.reduce("sum", net.input("x", S0, S1), 1, keepdim=True)
    assert len(fused(net, net.op("mul", net.input("y", S0, S1), total)).operations) == 2


def test_a_costly_broadcast_is_not_computed_at_every_point() -> None:
    net = Net()
    row = net.op("exp", net.input("row", S1))
    assert len(fused(net, net.op("add", net.input("x", S0, S1), row)).operations) == 2


def test_a_third_operation_between_two_keeps_them_apart() -> None:
    """x → max → x - max would leave `sum` between: the loop of both would have to run before and after it."""
    net = Net()
    x = net.op("exp", net.input("x", S0, S1))
    total = net.reduce("sum", net.mm(x, net.input("w", S1, S1)), 1, keepdim=True)
    after = fused(net, net.op("mul", x, total))
    assert kinds(after).index("Template") > 0
    assert len(after.operations) >= 3


def test_a_read_of_an_input_before_it_is_overwritten_elsewhere_stays_before() -> None:
    """Write after read: the update of x may not join a loop that reads another element of x."""
    net = Net()
    x = net.input("x", S0, S0)
    flipped = net.op("exp", net.permute(x, 1, 0))
    net.write(x, net.op("mul", flipped, 2.0))
    after = fused(net, flipped)
    for operation in after.operations:
        assert isinstance(operation, Loop) and levels.in_place_fault(operation) is None


def test_an_element_that_a_later_pass_reads_again_is_not_overwritten_before() -> None:
    """softmax over x updated in place: the fused loop would read x again after its store."""
    net = Net()
    x = net.input("x", S0, S1)
    net.write(x, net.op("add", x, 1.0))
    after = fused(net, softmax(net, x))
    for operation in after.operations:
        assert isinstance(operation, Loop) and levels.in_place_fault(operation) is None


def scatter_program(read_back: bool) -> Program:
    """out[rows[i]] += exp(x[i]), then exp(out) or exp(x)."""
    net = Net()
    x, rows, out = (
        net.input("x", S0),
        net.input("rows", S0, dtype=I64),
        net.builder.new_buffer((S0,), F32, torch.device("cpu")),
    )
    target = whole(out)
    net.builder.store(target, net.op("mul", x, 0.0))
    axes = net.builder.axes((S0,))
    p = axes[0].symbol
    index = expr.load(I64, "rows", p)
    store = Store(out.name, expr.indirect_symbol(0), expr.op("exp", F32, expr.load(F32, "x", p)), "add", (index,))
    net.builder.loop(axes, (), (store,), "scatter")
    scattered = replace(x, view=target)
    assert rows.view is not None
    return net.program(net.op("exp", scattered if read_back else x), scattered)


@pytest.mark.parametrize("read_back", [True, False])
def test_a_scatter_fuses_with_neither_its_reader_nor_its_sibling(read_back: bool) -> None:
    before = scatter_program(read_back)
    after = optimize(before).program
    assert_same(before, after, {S0: 5})
    scatter = next(o for o in after.operations if isinstance(o, Loop) and any(s.mode == "add" for s in o.stores))
    assert len(scatter.stores) == 1


def test_a_loop_that_would_touch_too_many_buffers_is_not_made() -> None:
    net = Net()
    inputs = [net.input(f"x{i}", S0) for i in range(MAX_BUFFERS + 3)]
    total = inputs[0]
    for x in inputs[1:]:
        total = net.op("add", total, x)
    after = fused(net, total)
    assert len(after.operations) == 2
    assert all(len(o.reads() | o.writes()) <= MAX_BUFFERS for o in after.operations)


def test_a_loop_that_would_have_too_many_nodes_is_not_made() -> None:
    net = Net()
    x = net.input("x", S0)
    for _ in range(MAX_NODES + 20):
        x = net.op("sin", x)
    after = fused(net, x)
    assert len(after.operations) == 2


def test_unfit_loops_say_why() -> None:
    net = Net()
    x = net.op("exp", net.input("x", S0, S0))
    program = net.program(net.op("add", x, net.permute(x, 1, 0)))
    first, second = (o for o in program.operations if isinstance(o, Loop))
    with pytest.raises(Unfit, match=r"is stored at .* and read at"):
        merge(first, second, program.buffers, frozenset())


# siblings ----------------------------------------------------------------------------------------------------------------


def test_reductions_of_the_same_tensor_over_the_same_dimensions_read_it_once() -> None:
    net = Net()
    x, y = net.input("x", S0, S1), net.input("y", S0, S1)
    both = net.reduce("sum", x, 0), net.reduce("max", x, 0)
    after = fused(net, *both, rule=fuse_horizontally)
    assert len(after.operations) == 1 and y.view is not None


def test_siblings_may_read_through_transposes() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    after = fused(net, net.op("exp", x), net.op("sin", net.permute(x, 1, 0)), rule=fuse_horizontally)
    assert len(after.operations) == 1


def test_reductions_over_different_dimensions_stay_apart() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    assert len(fused(net, net.reduce("sum", x, 0), net.reduce("sum", x, 1), rule=fuse_horizontally).operations) == 2


def test_loops_that_share_little_stay_apart() -> None:
    """They have only a small vector in common."""
    net = Net()
    x, y, bias = net.input("x", S0, S1), net.input("y", S0, S1), net.input("bias", S1)
    after = fused(net, net.op("add", x, bias), net.op("add", y, bias), rule=fuse_horizontally)
    assert len(after.operations) == 2


def drawn(net: Net, seed: Tensor, at: tuple[int, int] = (0, 1)) -> Tensor:
    """Which numbers, one for each point of S0×S1 counted along the dimensions `at`, are below a half."""
    shape = (S0, S1)

    def element(point: tuple[sympy.Expr, ...]) -> Node:
        counter = expr.index_value(point[at[0]] * shape[at[1]] + point[at[1]])
        number = expr.op("philox_uniform", F32, seed.at((sizes.ZERO,)), counter)
        return expr.op("lt", torch.bool, number, expr.const(0.5, F32))

    return computed(shape, torch.bool, CPU, element)


def test_the_same_random_numbers_are_drawn_once() -> None:
    net = Net()
    x, seed = net.input("x", S0, S1), net.input("seed", 1, dtype=I64)
    kept = net.map(lambda a, keep: expr.op("where", F32, keep, a, expr.const(0.0, F32)), x, drawn(net, seed))
    after = fused(net, kept, net.builder.realize(drawn(net, seed)), rule=fuse_horizontally)
    assert kinds(after) == ["Loop"]
    assert len([n for n in expr.walk(*loop_of(after).roots) if isinstance(n, Op) and n.name == "philox_uniform"]) == 1


def test_random_numbers_that_are_counted_otherwise_stay_apart() -> None:
    net = Net()
    x, seed = net.input("x", S0, S1), net.input("seed", 1, dtype=I64)
    made = [net.builder.realize(drawn(net, seed, at)) for at in ((0, 1), (1, 0))]
    assert len(fused(net, *made, net.op("exp", x), rule=fuse_horizontally).operations) == 3


# inlining ----------------------------------------------------------------------------------------------------------------


def test_a_cheap_broadcast_is_computed_where_it_is_read() -> None:
    net = Net()
    row = net.op("mul", net.input("row", S1), 2.0)
    after = fused(net, net.op("add", net.input("x", S0, S1), row), rule=inline_cheap)
    assert len(after.operations) == 1


def test_a_cheap_value_is_computed_at_the_slice_that_is_read() -> None:
    net = Net()
    doubled = net.op("mul", net.input("x", S0, 8), 2.0)
    after = fused(net, net.op("exp", net.slice(doubled, 3, 4)), rule=inline_cheap)
    assert len(after.operations) == 1


def test_a_costly_value_and_an_output_are_not_inlined() -> None:
    net = Net()
    costly = net.op("exp", net.input("x", S0, 8))
    assert len(fused(net, net.op("neg", net.slice(costly, 3, 4)), rule=inline_cheap).operations) == 2
    net = Net()
    cheap = net.op("neg", net.input("x", S0, 8))
    assert len(fused(net, cheap, net.op("neg", net.slice(cheap, 3, 4)), rule=inline_cheap).operations) == 2


def test_a_value_whose_input_changes_before_the_reader_is_not_inlined() -> None:
    net = Net()
    row = net.input("row", S1)
    scaled = net.op("mul", row, 2.0)
    net.write(row, net.op("add", net.input("other", S1), 1.0))
    after = fused(net, net.op("add", net.input("x", S0, S1), scaled), rule=inline_cheap)
    assert_same(net.program(net.op("neg", scaled)), optimize(net.program(net.op("neg", scaled))).program, EXTENTS)
    assert len(after.operations) >= 3


# costly broadcasts -------------------------------------------------------------------------------------------------------


def times(net: Net, x: Tensor, factor: Callable[[Point], Node]) -> Tensor:
    """x[p0, p1] · factor(p0, p1), all of it one loop."""
    return net.builder.realize(computed(x.sizes, F32, CPU, lambda point: expr.op("mul", F32, x.at(point), factor(point))))


def test_a_costly_value_that_many_points_share_is_stored_and_made_with_what_it_is_of() -> None:
    net = Net()
    total = net.reduce("sum", net.input("y", S1, S2), 1)
    out = times(net, net.input("x", S0, S1), lambda point: expr.op("rsqrt", F32, total.at(point[1:])))
    shared = fused(net, out, rule=store_broadcasts)
    assert [len(loop_of(shared, k).axes) for k in range(3)] == [1, 1, 2]
    after = fuse_vertically(shared)
    assert_same(shared, after, EXTENTS)
    assert len(after.operations) == 2
    assert not any(isinstance(n, Op) and n.name == "rsqrt" for n in expr.walk(*loop_of(after, 1).roots))


@pytest.mark.parametrize(
    ("name", "of"), [("neg", (1,)), ("exp", (0, 1)), ("exp", (0,))], ids=("cheap", "each point's own", "of a row")
)
def test_other_values_stay_where_they_are(name: str, of: tuple[int, ...]) -> None:
    net = Net()
    y = net.input("y", *[(S0, S1)[d] for d in of])
    out = times(net, net.input("x", S0, S1), lambda point: expr.op(name, F32, y.at(tuple(point[d] for d in of))))
    assert len(fused(net, out, rule=store_broadcasts).operations) == 1


# dependencies ------------------------------------------------------------------------------------------------------------


def test_library_calls_with_effects_stay_in_order_and_sizes_come_before_their_use() -> None:
    u0 = sympy.Symbol("u0", positive=True, integer=True)
    x = Buffer("x", F32, (S0,), (sizes.ONE,), role="input")
    found = Buffer("found", I64, (u0, sizes.ONE), (sizes.ONE, sizes.ONE))
    noise = [Buffer(f"noise{i}", F32, (S0,), (sizes.ONE,)) for i in range(2)]
    draw = torch.ops.aten.rand_like.default
    calls = [Extern(f"lib{i}", draw, (Ref(whole(x)),), (), (b.name,)) for i, b in enumerate(noise)]
    count = Extern(
        "lib2", torch.ops.aten.nonzero.default, (Ref(whole(x)),), (), ("found",), symbols=((u0, ("size", 0, 0)),)
    )
    use = Extern("lib3", torch.ops.aten.full.default, ([Ref(u0)], 1.0), (), (None,))
    buffers = {b.name: b for b in (x, found, *noise)}
    program = Program("test", (Input("x", "x"),), buffers, (*calls, count, use), ())
    graph = Graph(program)
    assert graph.before[1] & 1 << 0  # the second draw after the first
    assert graph.before[3] & 1 << 2  # the use of u0 after its definition
    assert not graph.before[2]


def test_four_times_the_operations_are_about_four_times_the_work() -> None:
    """Layers of norm, pointwise work and column sums. A search of all pairs would be sixteen times the work."""

    def layers(number: int) -> Program:
        net = Net()
        x, weight, bias = net.input("x", S0, S1), net.input("weight", S1), net.input("bias", S1)
        outputs = []
        for _ in range(number):
            x = net.op("add", x, net.op("sigmoid", layer_norm(net, x, weight, bias, 5.0)))
            outputs.append(net.reduce("sum", x, 0))
        return net.program(x, *outputs)

    few, many = layers(10), layers(40)
    optimize(few)  # what is computed once for all programs
    work = calls_in(lambda: optimize(few))
    after: list[Program] = []
    assert calls_in(lambda: after.append(optimize(many).program)) < 8 * work
    assert len(many.operations) > 500 and len(after[0].operations) < 0.4 * len(many.operations)


def calls_in(work: Callable[[], object]) -> int:
    """How many Python functions `work` calls, one in another included: what it costs, by no clock."""
    count = 0

    def seen(frame: object, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
