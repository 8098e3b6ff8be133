"""Kernels made for sizes that have not been seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import polytile
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import HintError
from polytile.runtime import compile as compiling
from tests.behaviour.helpers import check, decisions, graphs, multikernel, multikernels, sized
from tests.waiting import PATIENCE

HINTS = [16, 64, 256]


def matmul(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def pointwise(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x) * y + x


def scan(x: Tensor) -> Tensor:
    return torch.cumsum(x, -1)


KINDS = {
    "matmul": (matmul, ("square", "square")),
    "softmax": (softmax, ("square",)),
    "pointwise": (pointwise, ("square", "square")),
    "scan": (scan, ("square",)),
}


def square(n: int, count: int) -> tuple[Tensor, ...]:
    return tuple(sized(*[(n, n)] * count))


def decided_at(kernel: MultiKernel) -> set[frozenset[int]]:
    return {frozenset(size for _, size in decision.sizes if size > 1) for decision in kernel.decisions}


def test_hints_for_a_graph_of_no_rows_leave_nothing_to_compare() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1).sum(0)

    run = polytile.compile(function, hints=[33])
    for shape in ((0, 3), (0, 40), (5, 7)):
        check(function, run, *sized(shape))


@pytest.mark.parametrize("divisor", [lambda y: y, lambda y: y - 1])
def test_made_up_divisors_are_no_error(divisor: Callable[[Tensor], Tensor]) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x // divisor(y)

    run = polytile.compile(function, hints=[64])
    for n in (64, 9):
        check(function, run, torch.arange(4 * n).view(4, n), torch.arange(n) + 2)


@pytest.mark.parametrize("kind", KINDS)
def test_each_hint_gets_its_decision_when_the_function_is_compiled(kind: str, empty_cache: object) -> None:
    function, shapes = KINDS[kind]
    run = polytile.compile(function, hints=HINTS)
    check(function, run, *square(96, len(shapes)))
    at_first = {max(size for _, size in d.sizes) for d in decisions()}
    assert all({hint, hint * hint} & at_first for hint in HINTS)  # a flattened loop has hint² points
    counts = dict(polytile.counters)
    for hint in HINTS:
        check(function, run, *square(hint, len(shapes)))
    assert polytile.counters["candidates_benchmarked"] == counts["candidates_benchmarked"], "tuned at the hints"
    assert polytile.counters["compiler_runs"] == counts["compiler_runs"], "and compiled"
    assert polytile.counters["dispatch_misses"] == counts["dispatch_misses"]
    assert graphs() == (1, 1)


def test_hints_of_one_regime_have_a_kernel_each(empty_cache: object) -> None:
    """Chosen and measured at its own size, whatever the other hint's is, and told as such."""
    run = polytile.compile(matmul, hints={"s0": [70, 90]})
    check(matmul, run, *sized((20, 40), (40, 30)))
    kernel = multikernel("mm")
    hinted = {dict(d.sizes)["M"]: d for d in kernel.decisions if d.provenance.endswith(", for a hint")}
    assert set(hinted) == {70, 90} and len(kernel.decisions) == 3
    whole = hinted[70].part_of or hinted[70].regime  # it is subdivided if times say that 90 may want another candidate
    assert hinted[90].part_of == whole and all(dict(d.problem.sizes)["M"] == m for m, d in hinted.items())
    counts = dict(polytile.counters)
    for rows in (70, 90, 85):
        check(matmul, run, *sized((rows, 40), (40, 30)))
    own = hinted[70].part_of is not None  # a sub-bucket of 85's own then
    assert polytile.counters["dispatch_misses"] - counts["dispatch_misses"] <= own and len(kernel.decisions) <= 3 + own
    told = str(polytile.explain(run, *sized((70, 40), (40, 30))))
    assert told.count(", for a hint") == 2


def test_what_is_compiled_ahead_is_at_hand_when_its_size_comes(empty_cache: object) -> None:
    """No decision is made before: the call makes it, and compiles nothing."""
    run = polytile.compile(matmul, compile_ahead={"s0": [3], "s1": [4096]}, options={"tune": "off", "sources": "cpp"})
    check(matmul, run, *sized((96, 100), (100, 80)))
    compiling.settle(PATIENCE)  # in the background
    kernel, runs = multikernel("mm"), polytile.counters["compiler_runs"]
    assert len(kernel.decisions) == 1
    check(matmul, run, *sized((3, 4096), (4096, 80)))
    assert len(kernel.decisions) == 2 and polytile.counters["compiler_runs"] == runs
    assert kernel.decisions[0].candidate != kernel.decisions[1].candidate, "another kernel than the first call's"
    with pytest.raises(HintError, match="compile_ahead="):
        polytile.compile(matmul, compile_ahead=[-1])


def test_candidates_are_timed_at_the_hint_and_nowhere_else(
    empty_cache: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polytile.tuning import measure

    seen: set[frozenset[tuple[int, ...]]] = set()

    def clock(contender: measure.Contender, repeats: int) -> float:
        seen.add(frozenset(tuple(a.shape) for a in contender.args if isinstance(a, Tensor) and a.dim() == 2))
        sizes.update(a for a in contender.args if isinstance(a, int))
        return repeats * 1e-6

    sizes: set[int] = set()
    monkeypatch.setattr(measure, "time_burst", clock)
    polytile.compile(matmul, hints=HINTS)(*square(96, 2))
    assert {n for n in sizes if n > 8} == {*HINTS, 96}


def test_hinted_kernels_are_made_for_their_hint() -> None:
    polytile.compile(matmul, hints=HINTS)(*square(96, 2))
    kernel = multikernel("mm")
    sized_for = {dict(d.sizes).get("M", 0) for d in kernel.decisions}
    assert {*HINTS, 96} <= sized_for


def test_equal_configs_made_for_different_hints_stay_apart() -> None:
    from polytile.problem import Config

    assert Config.of(hint={"M": 64}, threads=2) != Config.of(hint={"M": 256}, threads=2)
    assert str(Config.of(hint={"M": 64}, threads=2)) != str(Config.of(hint={"M": 256}, threads=2))


def test_hints_for_one_size_leave_the_others_as_traced() -> None:
    x, y = sized((40, 24), (24, 56))
    run = polytile.compile(matmul, hints={"s0": [7, 300]})
    check(matmul, run, x, y)
    seen = [dict(d.sizes) for d in multikernel("mm").decisions]
    assert {sizes["M"] for sizes in seen} == {7, 300, 40}
    assert {(sizes["K"], sizes["N"]) for sizes in seen} == {(24, 56)}


def test_sizes_that_derive_from_hinted_ones_are_computed_from_them() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        doubled = torch.cat([x, x.flip(0)])
        return torch.softmax(doubled, 0).t().contiguous(), (x[1:] * x[:-1]).cumsum(0)

    run = polytile.compile(function, hints=[20, 600])
    check(function, run, *sized((50, 30)))
    before = dict(polytile.counters)
    for n in (20, 600):
        check(function, run, *sized((n, n)))
    assert polytile.counters["candidates_benchmarked"] == before["candidates_benchmarked"]
    lengths = {size for kernel in multikernels() for d in kernel.decisions for _, size in d.sizes}
    assert {20, 600} <= lengths or {40, 1200} <= lengths


def test_a_hint_for_no_size_is_refused_with_the_sizes_there_are() -> None:
    with pytest.raises(Exception, match="no dynamic size"):
        polytile.compile(matmul, hints={"s9": [64]})(*square(40, 2))


@pytest.mark.parametrize("hints", [[64, -1], [64, "256"], [1.5]])
def test_a_hint_that_is_no_size_is_refused(hints: list[object]) -> None:
    with pytest.raises(ValueError, match="hints"):
        polytile.compile(matmul, hints=hints)


def test_a_hint_for_which_there_is_no_memory_names_kernel_and_size() -> None:
    run = polytile.compile(softmax, hints=[10**9])  # rows and columns
    with pytest.raises(HintError, match="kernel 'amax.*' cannot be tried at the hinted n0=1000000000, n1=1000000000: .*memory"):
        run(*sized((3, 4)))


def test_hints_work_with_a_backward_pass() -> None:
    run = polytile.compile(softmax, hints=HINTS)
    for n in (40, *HINTS):
        mine, theirs = (square(n, 1)[0].requires_grad_() for _ in range(2))
        cotangent = next(sized((n, n), seed=4))
        got = torch.autograd.grad(run(mine), mine, cotangent)
        want = torch.autograd.grad(softmax(theirs), theirs, cotangent)
        torch.testing.assert_close(got, want)
    assert graphs() == (2, 1)


def test_warming_for_hints_does_not_move_the_random_state() -> None:
    arguments = square(40, 2)
    state = torch.get_rng_state()
    polytile.compile(matmul, hints=HINTS)(*arguments)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_library_competes_at_every_shape() -> None:
    run = polytile.compile(matmul, hints=[64, 256])
    for m, k, n in ((40, 24, 56), (200, 300, 100), (3, 500, 70)):
        check(matmul, run, *sized((m, k), (k, n)))
    for decision in multikernel("mm").decisions:
        assert "aten" in [standing.candidate for standing in decision.standings]
        if decision.link == "measured":
            (library,) = (s for s in decision.standings if s.candidate == "aten")
            assert library.seconds > 0


def test_decorator_form() -> None:
    @polytile.compile(hints=[32])
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    torch.testing.assert_close(function(*square(12, 1)), torch.softmax(*square(12, 1), -1))


def test_a_mark_of_a_dimension_is_a_hint(empty_cache: object) -> None:
    x, y = sized((32, 48), (48, 16))
    torch._dynamo.mark_dynamic(x, 0, hint_override=200)
    run = polytile.compile(matmul)
    check(matmul, run, x, y)
    assert any(dict(decision.sizes).get("M") == 200 for decision in decisions()), "decided before a call with such sizes"
    counts = dict(polytile.counters)
    check(matmul, run, *sized((200, 48), (48, 16)))
    assert polytile.counters["dispatch_misses"] == counts["dispatch_misses"]
