"""CUDA graphs of whole programs, library calls included: results belong to the caller, and other inputs, streams, threads and
sizes are as without graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

import polytile
from polytile.compiler.programs import compiled_programs
from polytile.runtime import compile as compiling
from polytile.runtime.cuda.graphs import Numbers, ProgramGraphs
from tests.gpu.comparing import agree, data

pytestmark = pytest.mark.gpu

ROUNDS, CALLS = 12, 30
WIDTH = 96


def numbers() -> Numbers:
    """What graphs did for all programs."""
    every = [getattr(program.call, "cuda_graphs", None) for program in compiled_programs()]
    found = [one for graphs in every if isinstance(graphs, ProgramGraphs) and (one := graphs.numbers()) is not None]
    return Numbers(*(sum(getattr(one, each.name) for one in found) for each in fields(Numbers)))


def settled(function: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> Callable[..., Any]:
    """The compiled function, once calls with each of these arguments follow a graph."""
    call = polytile.compile(function, options={"cuda_graphs": "auto", "stall": "compile", "tune": "off", **options})
    for _ in range(ROUNDS):
        before = numbers().followed
        for given in calls:
            for _ in range(CALLS):
                call(*given)
        compiling.settle(60)
        polytile.wait(timeout=60)
        if numbers().followed - before >= len(calls) * (CALLS - 1):
            return call
    raise AssertionError(str(numbers()))


def layers(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Products that ATen, cuBLASLt or a template computes, and loops."""
    for _ in range(3):
        x = torch.softmax((x @ w).relu() @ v, -1) + x
    return x


def weights() -> tuple[Tensor, Tensor]:
    return data(WIDTH, 4 * WIDTH) / 10, data(4 * WIDTH, WIDTH) / 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_program_with_library_calls_is_one_graph(dtype: torch.dtype) -> None:
    w, v = (weight.to(dtype) for weight in weights())
    x, y = data(64, WIDTH, dtype=dtype), data(200, WIDTH, dtype=dtype)
    call, before = settled(layers, (x, w, v), (y, w, v)), numbers()
    for given in (x, y, x, data(64, WIDTH, dtype=dtype), data(17, WIDTH, dtype=dtype), y):
        agree(call(given, w, v), layers(given, w, v), layers(given.double(), w.double(), v.double()))
    after = numbers()
    assert after.refused == 0 and after.error == 0
    assert (after.to_python, after.to_library, after.to_memory) == (before.to_python, before.to_library, before.to_memory)


def test_results_belong_to_the_caller() -> None:
    w, v = weights()
    x = data(64, WIDTH)
    call = settled(layers, (x, w, v))
    kept = []
    for k in range(40):
        x.copy_(data(64, WIDTH))
        kept.append((call(x, w, v), layers(x, w, v)))
        if k % 8 == 0:
            polytile.wait(timeout=60)
    assert len({result.data_ptr() for result, _ in kept}) == len(kept)
    for result, right in kept:
        agree(result, right, what="kept")


def test_arguments_are_changed_in_place() -> None:
    def step(state: Tensor, x: Tensor, w: Tensor) -> Tensor:
        y = torch.softmax(x @ w, -1)
        state.add_(torch.softmax(y * 2, 0).sum(0))
        return torch.softmax(y + state, -1)

    w = data(WIDTH, WIDTH) / 10
    mine, right, x = torch.zeros(WIDTH, device="cuda"), torch.zeros(WIDTH, device="cuda"), data(32, WIDTH)
    call = settled(step, (torch.zeros(WIDTH, device="cuda"), x, w))
    for _ in range(60):
        x.copy_(data(32, WIDTH))
        got, want = call(mine, x, w), step(right, x, w)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


def test_workspaces_that_torch_gives_up_are_not_used_by_others() -> None:
    w, v = (weight.bfloat16() for weight in weights())
    x = data(8, WIDTH, dtype=torch.bfloat16)
    call = settled(layers, (x, w, v))
    right = call(x, w, v).clone()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    others = [torch.full((1 << 20,), 7, dtype=torch.uint8, device="cuda") for _ in range(64)]
    for _ in range(50):
        assert torch.equal(call(x, w, v), right)
    assert all(bool((other == 7).all()) for other in others)


def test_each_stream_and_thread_has_its_own_results() -> None:
    w, v = (weight.bfloat16() for weight in weights())
    given = [data(rows, WIDTH, dtype=torch.bfloat16) for rows in (8, 40, 64)]
    call = settled(layers, *((x, w, v) for x in given))
    right, wrong = [call(x, w, v).clone() for x in given], []
    torch.cuda.synchronize()

    def many() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for k in range(150):
                got = call(given[k % 3], w, v)
                if k % 5 == 0:
                    stream.synchronize()
                    wrong.extend([k] if not torch.allclose(got, right[k % 3], rtol=2e-2, atol=2e-2) else [])

    threads = [threading.Thread(target=many) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_index_out_of_range_is_told_by_a_graph_too() -> None:
    def pick(table: Tensor, index: Tensor) -> Tensor:
        for step in range(6):  # along axes in turns, as one kernel would compute them all along one
            table = torch.softmax(table, step % 2)
        return torch.softmax(table[index], -1)

    table, index = data(64, WIDTH), torch.arange(32, device="cuda")
    call = settled(pick, (table, index))
    index.fill_(10**6)
    with pytest.raises(IndexError):
        for _ in range(3):
            call(table, index)
            torch.cuda.synchronize()
