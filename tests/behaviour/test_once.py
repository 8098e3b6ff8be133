"""Threads that make a first call together compile it once, and whatever precedes a compile runs once in each call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polytile
from tests.behaviour.helpers import graphs
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    torch.torch_version.TorchVersion(torch.__version__) < (2, 13),
    reason='threads that trace at once crash torch before 2.13, with backend="aot_eager" too',
)

THREADS = 8


def together(call: Callable[[int], Any]) -> list[Any]:
    """What `call` of each thread's number returned, or raised."""
    start, given = threading.Barrier(THREADS), dict[int, Any]()

    def work(number: int) -> None:
        start.wait(PATIENCE)
        try:
            given[number] = call(number)
        except Exception as error:
            given[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    return [given[number] for number in range(THREADS)]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.linear(x) * 1.625, -1)


def scaled(x: Tensor) -> Tensor:
    return torch.softmax(x * 1.8125, -1)


@torch._dynamo.disable
def note(noted: list[int]) -> None:
    noted.append(threading.get_ident())


@pytest.mark.parametrize("front_door", ["on", "check"])
@pytest.mark.parametrize("make", [Layer, lambda: scaled], ids=["module", "function"])
def test_eight_threads_compile_one_graph(make: Callable[[], Any], front_door: str) -> None:
    function, x = make(), torch.randn(5, 24)
    run = polytile.compile(function, options={"front_door": front_door})
    expected = function(x).detach()
    for result in together(lambda _: torch.no_grad()(run)(x)):
        torch.testing.assert_close(result, expected)
    assert graphs() == (1, 1)


def test_threads_whose_inputs_need_different_code_compile_each_once() -> None:
    run, inputs = polytile.compile(scaled), [torch.randn(5, 24), torch.randn(2, 3, 24)]
    for number, result in enumerate(together(lambda number: run(inputs[number % 2]))):
        torch.testing.assert_close(result, scaled(inputs[number % 2]))
    assert graphs() == (2, 2)


def test_a_hook_before_the_module_runs_once_in_each_call() -> None:
    layer, noted = Layer(), list[int]()
    layer.register_forward_pre_hook(lambda module, inputs: note(noted))
    run, x = polytile.compile(layer), torch.randn(5, 24)
    expected = torch.softmax(layer.linear(x) * 1.625, -1)
    for result in together(lambda _: run(x)):
        torch.testing.assert_close(result, expected)
    assert len(noted) == len(set(noted)) == THREADS


def test_what_precedes_a_graph_break_runs_once_in_each_call() -> None:
    def power(x: Tensor, times: int) -> Tensor:
        note(noted)
        return x if times == 0 else power(x * 2, times - 1)

    noted: list[int] = []
    run, x = polytile.compile(power), torch.randn(5)
    assert all(torch.equal(result, x * 8) for result in together(lambda _: run(x, 3)))
    assert len(noted) == 4 * THREADS


def test_each_thread_is_told_what_cannot_be_compiled() -> None:
    def broken(x: Tensor) -> Tensor:
        note([])
        return x + 1

    run, x = polytile.compile(broken, fullgraph=True), torch.randn(5)
    assert all(isinstance(error, torch._dynamo.exc.Unsupported) for error in together(lambda _: run(x)))
