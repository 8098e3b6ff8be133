"""Random programs are eager's in all that a caller can see, and what compares them sees every kind of difference.

`python -m tests.fuzz.run --seeds 0:1000` runs more of them, and reduces those that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fuzz.compare import wrong_with
from tests.fuzz.programs import Fuzzed, Input, make
from tests.fuzz.run import DYNAMO, reduced, told

SEEDS = 16
"""Programs of the usual tests."""


@pytest.fixture(autouse=True)
def as_in_long_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("POLYTILE_VERIFY_IR", "1")
    with torch._dynamo.config.patch(DYNAMO):
        yield


@pytest.mark.parametrize("part", range(4))
def test_random_programs_are_eagers(part: int) -> None:
    for seed in range(part, SEEDS, 4):
        program = make(seed)
        wrong = wrong_with(program)
        assert not wrong, told(program, wrong)


def clones(results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    return [r.clone(memory_format=torch.preserve_format) if isinstance(r, Tensor) else r for r in results]


def dense(results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    return [r.contiguous() if isinstance(r, Tensor) else r for r in results]


def one_off(results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    return [results[0] + 1, *results[1:]]


def narrower(results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    return [results[0].to(torch.float16), *results[1:]]


def draws(results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    torch.rand(1)
    return list(results)


def writes(results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    for each in given:
        if isinstance(each, Tensor):
            each.zero_()
    return list(results)


def raises(results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    raise ValueError("planted")


PLANTED = {
    clones: "do not share memory", dense: "strides", one_off: "result 0: [", narrower: "dtype", draws: "generator",
    writes: "result 0: [0", raises: "ValueError: planted",
}  # fmt: skip
TRANSPOSED = Fuzzed(
    0, ("v0 = x0.t()", "v1 = x0 * 2"), ("v0", "v1"), (Input(("n", "m"), torch.float32, "contiguous", True),), "torch.no_grad()",
    ((5, 6),),
)  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_seen(fault: Callable[..., list[Any]]) -> None:
    def backend(graph: torch.fx.GraphModule, _: Sequence[Tensor]) -> Callable[..., Any]:
        return lambda *given: fault(graph(*given), given)

    program = replace(TRANSPOSED, results=("v1", "v0")) if fault in (one_off, narrower) else TRANSPOSED
    assert PLANTED[fault] in wrong_with(program, backend)
    assert not wrong_with(program, "eager")


def test_a_program_in_float64_has_the_same_inputs() -> None:
    for program in map(make, range(20)):
        for short, wide in zip(program.tensors((5, 6)), program.tensors((5, 6), wide=True), strict=True):
            torch.testing.assert_close(short, wide, rtol=0, atol=0, check_dtype=False, equal_nan=True)


def test_a_failing_program_is_reduced_to_what_fails() -> None:
    program = make(3)
    lines = (*program.lines, "v90 = x0 * 7", "v91 = v90 + 1")
    program = replace(program, lines=lines, results=(*program.results, "v91"))
    small = reduced(program, lambda one: "wrong" if "* 7" in one.text else "")
    assert [line for line in small.lines if "* 7" in line] == list(small.lines) and len(small.results) == len(small.sizes) == 1


def test_a_program_is_the_same_each_time() -> None:
    assert [make(seed) for seed in range(20)] == [make(seed) for seed in range(20)]
