"""Numbers of the host in kernels of another device. The device is torch's "meta", which this machine has: nothing is run."""

from __future__ import annotations

import math

import pytest
import torch

from polytile.frontend.host_numbers import Filled, gathered, kernel_number
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.value import Tensor, computed, stored
from polytile.ir import expr
from polytile.ir.buffer import whole
from polytile.ir.program import Extern

HOST, THERE = torch.device("cpu"), torch.device("meta")


def number(builder: Builder) -> Tensor:
    """A number that the host has in memory."""
    return stored(whole(builder.new_buffer((), torch.float64, HOST)), HOST)


def calls(builder: Builder) -> list[str]:
    return [str(operation.target) for operation in builder.operations if isinstance(operation, Extern)]


def test_a_number_goes_to_the_device_once() -> None:
    builder = Builder()
    value = number(builder)
    first, again = (kernel_number(builder, THERE, value) for _ in range(2))
    assert first.device == THERE and first == again
    assert calls(builder) == ["aten.full.default"]


def test_what_is_computed_from_a_number_is_computed_where_it_is_used() -> None:
    builder = Builder()
    value = number(builder)
    halved = computed((), torch.float32, HOST, lambda p: expr.op("cast", torch.float32, value.at(p)))
    there = kernel_number(builder, THERE, halved)
    assert there.view is None and there.device == THERE and there.dtype == torch.float32
    (load,) = expr.loads(there.node)
    assert builder.buffers[load.buffer].device == THERE and builder.buffers[load.buffer].dtype == torch.float64
    assert calls(builder) == ["aten.full.default"] and len(builder.operations) == 1


def test_what_is_undone_is_not_taken_for_done() -> None:
    builder = Builder()
    value = number(builder)
    mark = builder.mark()
    kernel_number(builder, THERE, value)
    builder.undo(mark)
    assert kernel_number(builder, THERE, value).view.buffer in builder.buffers
    assert calls(builder) == ["aten.full.default"]


def test_constants_and_numbers_of_the_same_device_stay() -> None:
    builder = Builder()
    value = number(builder)
    constant = computed((), torch.float32, HOST, lambda p: expr.const(0.5, torch.float32))
    assert kernel_number(builder, HOST, value) is value and kernel_number(builder, None, value) is value
    assert kernel_number(builder, THERE, constant).device == THERE
    assert not builder.operations


def test_the_value_is_the_one_of_each_call() -> None:
    fill = Filled(HOST)
    for value in (torch.tensor(1.5, dtype=torch.float64), torch.tensor(7), torch.tensor(True)):
        (made,) = fill(value)
        assert made.dtype == value.dtype and made.shape == () and bool(made == value)


def test_equal_numbers_are_filled_at_once_and_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    fills: list[float] = []
    full = torch.full
    monkeypatch.setattr(torch, "full", lambda size, value, **more: (fills.append(value), full(size, value, **more))[1])
    given = [1e-6, 0.0, 1e-6, -0.0, math.nan, 1e-6]
    made = Filled(HOST)(*(torch.tensor(value, dtype=torch.float64) for value in given), torch.tensor(0))
    assert list(map(repr, fills)) == ["1e-06", "0.0", "-0.0", "nan", "0"]
    assert [repr(value.item()) for value in made] == [*map(repr, given), "0"]
    addresses = [value.data_ptr() for value in made]
    assert len(set(addresses)) == 7 and all(address % 16 == 0 for address in addresses)


def test_numbers_that_are_arguments_go_there_together() -> None:
    builder = Builder()
    one, two, computed_later = (number(builder) for _ in range(3))
    for value in (one, computed_later, two):
        kernel_number(builder, THERE, value)
    assert one.view is not None and two.view is not None
    both, later = gathered(builder.operations, {one.view.buffer, two.view.buffer})
    assert isinstance(both, Extern) and isinstance(later, Extern)
    assert both.reads() == {one.view.buffer, two.view.buffer} and len(both.outputs) == 2 and both.many
    assert later == builder.operations[1]
