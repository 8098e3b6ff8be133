"""Values that wait for a later pass where the result will stand, and when they may not."""

from __future__ import annotations

import torch

from polytile.ir import expr
from polytile.ir.expr import Node
from polytile.runtime.launcher import time_burst
from polytile.schedule.cpu.value_cache import cache_stores, cached_values
from polytile.schedule.nest import nest_of
from polytile.schedule.rewrite import plain_reductions
from tests.codegen.helpers import BF16, F32, P0, R0, R1, S0, S1, Case, load, loop, op, random, store

ROW = P0 * S1 + R0
SHAPES = [(1, 1), (3, 7), (2, 64), (5, 100), (1, 3000)]


def power_and_sum(index: object = ROW) -> tuple[Node, Node]:
    power = op("exp", load("x", index))  # type: ignore[arg-type]
    return power, expr.reduce("sum", F32, power)


def held(case: Case) -> dict[str, str]:
    """The cached values by operation, with the tensor that holds each (empty: a row of its own)."""
    loop = plain_reductions(case.kernel.loop)
    nest = nest_of(loop)
    stores = cache_stores(case.kernel, nest)
    return {getattr(n, "name", ""): stores[n].buffer if n in stores else "" for n in cached_values(nest)}


def check(case: Case, **tensors: torch.dtype) -> None:
    for rows, columns in SHAPES:
        n = rows * columns
        case.check({name: random(n, dtype) for name, dtype in tensors.items()}, {S0: rows, S1: columns}, absolute=1e-6)


def test_a_value_waits_in_the_result() -> None:
    power, total = power_and_sum()
    case = Case(loop([store("o", ROW, op("div", power, total))], {P0: S0}, {R0: S1}), {"x": F32, "o": F32})
    assert held(case) == {"exp": "a1"}
    check(case, x=F32, o=F32)


def test_a_result_of_another_type_holds_nothing() -> None:
    power, total = power_and_sum()
    case = Case(loop([store("o", ROW, op("div", power, total))], {P0: S0}, {R0: S1}), {"x": F32, "o": BF16})
    assert held(case) == {"exp": ""}
    check(case, x=F32, o=BF16)


def test_an_input_that_is_read_later_at_the_same_place_forbids_it() -> None:
    """The result's memory may be the input's: what is still to be read there must stay."""
    power, total = power_and_sum()
    value = op("sub", op("div", power, total), load("y", ROW))
    case = Case(loop([store("o", ROW, value)], {P0: S0}, {R0: S1}), {"x": F32, "y": F32, "o": F32})
    assert held(case) == {"exp": ""}
    check(case, x=F32, y=F32, o=F32)


def test_a_result_in_the_memory_of_the_input() -> None:
    """As the memory planner lays them where the input dies."""
    power, total = power_and_sum()
    case = Case(loop([store("o", ROW, op("div", power, total))], {P0: S0}, {R0: S1}), {"x": F32, "o": F32})
    for name, entry in case.entries():
        x = random(3 * 500)
        want = torch.softmax(x.view(3, 500).double(), -1).float()
        time_burst(entry, case.arguments({"x": x, "o": x}, {S0: 3, S1: 500}), 1)
        torch.testing.assert_close(x.view(3, 500), want, msg=lambda text, name=name: f"{name}: {text}")


def test_two_values_wait_in_two_results() -> None:
    first, total = power_and_sum()
    second = op("erf", load("y", ROW))
    most = expr.reduce("max", F32, second)
    stores = [store("o", ROW, op("div", first, total)), store("u", ROW, op("div", second, most))]
    case = Case(loop(stores, {P0: S0}, {R0: S1}), dict.fromkeys("xyou", F32))
    assert sorted(held(case).values()) == ["a2", "a3"]
    check(case, x=F32, y=F32, o=F32, u=F32)


def test_rows_of_two_axes() -> None:
    index = (P0 * 5 + R1) * S1 + R0
    power, total = power_and_sum(index)
    case = Case(loop([store("o", index, op("div", power, total))], {P0: S0}, {R1: 5, R0: S1}), {"x": F32, "o": F32})
    assert held(case) == {"exp": "a1"}
    for rows, columns in [(1, 1), (3, 40)]:
        case.check({name: random(rows * columns * 5) for name in "xo"}, {S0: rows, S1: columns}, absolute=1e-6)
