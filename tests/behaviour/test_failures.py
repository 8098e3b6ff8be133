"""Whatever fails inside polytile, the user's program runs: as ATen calls, with a report and a script that shows the failure."""

from __future__ import annotations

import contextlib
import io
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import polytile
from polytile import options
from polytile.codegen.cpp import loops
from polytile.compiler import backend
from polytile.compiler import programs as compiler
from polytile.dispatch import selector
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import HintError, LoweringFailed, OptionError
from polytile.frontend import failures, graph
from polytile.frontend.lower.registry import TABLE, load
from polytile.passes import pipeline
from polytile.runtime import native

aten = torch.ops.aten


class Planted(Exception):
    """A defect of polytile."""


def fails(*args: Any, **kwargs: Any) -> Any:
    raise Planted("here")


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYTILE_ON_FAILURE", raising=False)


def network(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A convolution, a product, a softmax, and a view of one of the results."""
    image = F.conv2d(x, weight, padding=1).relu()
    rows = image.flatten(1)
    scores = torch.softmax(rows @ rows.t(), -1).exp()
    return scores, image.transpose(1, 2)


def arguments(batch: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, size, size), torch.randn(4, 3, 3, 3) / 5


def table_with(rule: Callable[..., Any]) -> Callable[[], Any]:
    real = backend.decompositions
    return lambda: {**real(), aten.relu.default: rule}


ROOMS: dict[str, tuple[Any, str, Any]] = {
    "preparing": (native, "prepare", fails),
    "hints": (backend.hinted, "sizes_of", fails),
    "decompositions": (backend, "decompositions", table_with(fails)),
    "layouts": (backend, "lay_channels_last", fails),
    "weights": (backend, "weights_of", fails),
    "a graph": (graph, "place", fails),
    "results": (graph, "laid_out", fails),
    "passes": (pipeline, "PASSES", (pipeline.Pass("planted", fails),)),
    "kernels": (compiler, "define_loop", fails),
    "products": (compiler, "define_template", fails),
    "scheduling": (compiler, "schedule", fails),
    "the wrapper": (compiler, "backend", lambda *given: fails),
    "candidates ahead": (compiler, "_prepare", fails),
    "choosing": (selector, "choose", fails),
    "choosing for a call": (MultiKernel, "select", fails),
    "code": (loops, "generate", fails),
}


@pytest.fixture(autouse=True)
def launcher_for_later_tests() -> Iterator[None]:
    """A launcher that failed to be made is not tried again by the process."""
    yield
    if native.module(quietly=True) is None:
        native.reset()


@pytest.mark.parametrize("room", ROOMS)
def test_a_failure_in_a_room_leaves_the_right_result(
    room: str, empty_cache: Path, broken_candidates: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner, name, planted = ROOMS[room]
    monkeypatch.setattr(owner, name, planted)
    monkeypatch.setattr("polytile.candidates.cpp_loops._made", {})  # what earlier tests generated would be found there
    call = polytile.compile(network)
    for batch, size in ((2, 5), (3, 8)):
        args = arguments(batch, size)
        with torch.no_grad():
            got, want = call(*args), network(*args)
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine.stride() == theirs.stride()
    assert any("here" in record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert polytile.counters["failures"] > 0 or room == "code"  # a candidate's, of which there are others


@pytest.mark.parametrize("kind", ["forward", "backward", "choosing"])
def test_a_failure_leaves_the_right_gradients(
    kind: str, empty_cache: Path, broken_candidates: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = backend._Compiler._program

    def program(self: Any, graph: Any, name: str) -> Any:
        return fails() if self.kind == kind else real(self, graph, name)

    if kind == "choosing":
        monkeypatch.setattr(selector, "choose", fails)
    monkeypatch.setattr(backend._Compiler, "_program", program)
    call = polytile.compile(network)
    for batch, size in ((2, 5), (3, 8)):
        args = [t.requires_grad_() for t in arguments(batch, size)]
        grads = []
        for function in (call, network):
            scores, image = function(*args)
            grads.append(torch.autograd.grad((scores * image.sum((1, 2, 3))).square().sum(), args))
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-4)
    assert polytile.counters["failures"] > 0


def test_a_graph_that_fails_is_reported_once_with_a_script(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def shifted(x: Tensor, k: int) -> Tensor:
        return torch.cumsum(x, 0)[:k] * torch.tensor([2.0, 3.0])

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "optimize", fails)
        call = polytile.compile(shifted)
        for n, k in ((5, 4), (9, 3)):
            x = torch.randn(n, 2)
            torch.testing.assert_close(call(x, k), shifted(x, k))
        polytile.compile(lambda x: x + 1)(torch.randn(4))
        explanation = polytile.explain(call, x, k)
        assert [row.how for row in explanation.operators if "cumsum" in row.operator] == ["library"]
        (failed,) = explanation.failures
        assert "Planted: here" in failed.reason and failed.script in str(explanation)
        assert Path(failed.script).is_relative_to(empty_cache)
        with pytest.raises(Exception, match="here"), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(failed.script, run_name="__main__")
    assert sum("failed to compile" in record.getMessage() for record in caplog.records) == 1
    assert polytile.counters["failures"] >= 2
    torch._dynamo.reset()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(failed.script, run_name="__main__")
    assert "compiles this graph" in said.getvalue()


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize("stall", ["never", "compile"])
def test_a_script_shows_a_failure_again_where_random_numbers_are_drawn_twice(
    kind: str, stall: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dropped(x: Tensor) -> Tensor:
        return checkpoint(lambda y: F.dropout(y.sin(), 0.3).cos(), x, use_reentrant=False).sum()

    real = backend._Compiler._program
    with monkeypatch.context() as patch, options.override(stall=stall):
        patch.setattr(backend._Compiler, "_program", lambda self, *given: fails() if self.kind == kind else real(self, *given))
        polytile.compile(dropped)(torch.randn(4, 8, requires_grad=True)).backward()
        (script,) = empty_cache.rglob("failures/*.py")
    torch._dynamo.reset()
    for planted in (True, False):
        said = io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(said):
            if planted:
                patch.setattr(compiler, "optimize", fails)
            with pytest.raises(Exception, match="here") if planted else contextlib.nullcontext():
                runpy.run_path(str(script), run_name="__main__")
        assert ("compiles this graph" in said.getvalue()) is not planted


def test_a_lowering_that_fails_becomes_a_library_call(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load()
    monkeypatch.setitem(TABLE, aten.atan2.default, fails)
    call = polytile.compile(lambda x: torch.atan2(x + 1, x) * 2)
    for n in (5, 8):
        x = torch.randn(n, 3)
        torch.testing.assert_close(call(x), torch.atan2(x + 1, x) * 2)
    explanation = polytile.explain(call, x)
    (row,) = (row for row in explanation.operators if row.operator == "aten.atan2.default")
    assert row.how == "library" and "Planted: here" in row.reason
    assert any(row.how == "generated" for row in explanation.operators)
    assert explanation.failures and Path(explanation.failures[0].script).exists()
    assert polytile.counters["failures"] == 1
    assert len([record for record in caplog.records if "Planted" in record.getMessage()]) == 1


def test_whoever_works_on_polytile_can_have_it_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    monkeypatch.setitem(TABLE, aten.atan2.default, fails)
    with options.override(on_failure="raise"), pytest.raises(Exception, match="Planted") as caught:
        polytile.compile(lambda x: torch.atan2(x + 1, x))(torch.randn(4))
    assert LoweringFailed.__name__ in repr(caught.value) + str(caught.value) + repr(caught.value.__cause__)


def test_what_the_caller_asked_for_wrongly_is_raised() -> None:
    with pytest.raises(OptionError):
        torch.compile(lambda x: x + 1, backend="polytile", options={"no_such_option": 1})(torch.randn(4))
    with pytest.raises(HintError, match="s7"):
        polytile.compile(lambda x: x + 1, hints={"s7": [4]})(torch.randn(4))


def test_what_the_program_itself_raises_is_raised() -> None:
    call = polytile.compile(lambda x, index: x[index] + 1)
    x = torch.randn(6)
    torch.testing.assert_close(call(x, torch.tensor([1, 5])), x[[1, 5]] + 1)
    with pytest.raises((IndexError, RuntimeError)):
        call(x, torch.tensor([1, 6]))
    with pytest.raises(Exception, match="[Ss]ize|shape|broadcast"):
        polytile.compile(lambda x, y: x + y)(torch.randn(4), torch.randn(5))
    with pytest.raises(RuntimeError, match="positive"):
        polytile.compile(lambda x: torch._check(x.shape[0] > 100, lambda: "positive") or x + 1)(x)
    assert polytile.counters["failures"] == 0


def test_a_graph_that_writes_its_arguments_fails_before_it_writes(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "schedule", fails)

    def function(x: Tensor, total: Tensor) -> Tensor:
        total += x.sum(0)
        return total * 2

    call = polytile.compile(function)
    for n in (4, 7):
        x, mine, theirs = torch.randn(n, 3), torch.ones(3), torch.ones(3)
        torch.testing.assert_close(call(x, mine), function(x, theirs))
        torch.testing.assert_close(mine, theirs)


def test_a_write_through_a_view_in_blocks() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.clone()
        y.view(x.shape[0], x.shape[1] // 4, 4)[..., 0] *= 2
        return y

    call = polytile.compile(function)
    for rows_, columns in ((3, 8), (5, 16), (2, 44)):
        x = torch.randn(rows_, columns, requires_grad=columns == 44)
        torch.testing.assert_close(call(x), function(x))
    assert polytile.counters["failures"] == 0 and failures.is_raised(Planted("")) is False


OUT_OF_RANGE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "indexed": lambda x, k: x[k] * 2,
    "embedded": lambda x, k: F.embedding(k, x) + 1,
    "gathered": lambda x, k: x.gather(0, k[:, None]) + 1,
    "scattered": lambda x, k: x.scatter_add(0, k[:, None], torch.ones(2, 1)),
}


@pytest.mark.parametrize("way", OUT_OF_RANGE)
def test_an_index_out_of_range_is_caught_as_in_eager(way: str) -> None:
    """Which raises IndexError for some operators and RuntimeError for others."""
    function = OUT_OF_RANGE[way]
    x, k = torch.randn(11, 3), torch.tensor([0, 14])
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(x, k)
    with pytest.raises(eager.type, match="out of range"):
        torch.compile(function, backend="polytile", dynamic=True)(x, k)


def test_a_softmax_over_a_dimension_that_is_not_there_is_no_failure_of_polytiles() -> None:
    """torch's tracer lets it pass; the operator tells of it, as in eager."""
    call = torch.compile(lambda x: x.softmax(3) + 1, backend="polytile", dynamic=True)
    with pytest.raises(IndexError, match="Dimension out of range"):
        call(torch.randn(11, 3))
