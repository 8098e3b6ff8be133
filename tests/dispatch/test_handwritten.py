"""Kernels that users write: chosen by sizes, checked and remembered as generated ones are (docs/kernels.md)."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import polytile
from polytile import store
from polytile.dispatch import signature
from polytile.dispatch.handwritten import Implementation, Kernel
from polytile.errors import InvalidInput, SignatureError
from tests.dispatch.failing_kernels import add_one
from tests.dispatch.handwritten_kernels import normed, rms_norm, scaled_by
from tests.waiting import PATIENCE

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def call(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> None:
    x, weight = torch.randn(rows, columns).to(dtype), torch.randn(columns).to(dtype)
    y = torch.full_like(x, torch.nan)
    rms_norm(x, weight, y)
    torch.testing.assert_close(y, normed(x, weight), rtol=1e-2, atol=1e-2)


def test_only_a_right_implementation_runs_and_one_that_crashes_costs_a_worker(empty_cache: Path) -> None:
    store.forget()
    for rows in (4, 300, 0):
        call(rows, 24)
    call(9, 8, torch.bfloat16)
    chosen = {dict(decision.sizes)["M"]: decision for decision in rms_norm.decisions}
    assert chosen[4].candidate in ("whole", "by_rows") and chosen[300].candidate == "whole"
    notes = {standing.candidate: standing.note for standing in chosen[4].standings}
    assert "is off by" in notes["unscaled"] and "crashed" in notes["crashing"]


def tried(n: int) -> set[str]:
    """What add_one has on record at this size, after a call at it."""
    x, y = torch.randn(n), torch.empty(n)
    add_one(x, y)
    torch.testing.assert_close(y, x + 1)
    return {m.candidate for m in store.current().measurements() if dict(m.problem.sizes) == {"N": n}}


def test_one_that_fails_is_told_and_one_that_takes_its_process_down_is_not_tried_again(
    empty_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.forget()
    every = {"right", "raising", "crashing", "endless"}
    assert tried(100) == every
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"Candidate {name!r} of kernel 'add_one' {what} and is not used"
        for name, what in (("raising", "raises an error"), ("crashing", "crashes"), ("endless", "does not come to an end"))
    ]
    assert "ValueError: 100 is not to its liking" in caplog.text and "aborted" in caplog.text
    caplog.clear()
    assert tried(1000) == {"right", "raising"}  # it may run at other sizes
    assert caplog.records == []
    for made in add_one._made.values():  # another process
        made.forget()
    add_one._reported.clear()
    store.forget()
    assert tried(2000) == {"right", "raising"}
    assert "'crashing' of kernel 'add_one' crashes and is not used: crashed at N=100, on record" in caplog.text
    assert "'endless' of kernel 'add_one' does not come to an end and is not used: timed out at N=100, on record" in caplog.text
    assert tried(10) == {"right", "raising", "endless"}  # no smaller size is known to be without end
    assert tried(20_000) == {"right"}  # one that raised wherever it was tried is not worth another trial
    caplog.clear()
    x = torch.randn(100, dtype=torch.float64)
    add_one(x, torch.empty_like(x))
    assert caplog.records == []  # tensors of another kind are no news


def test_a_valid_that_raises_is_told_once_and_a_cost_that_does_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    @polytile.kernel("x[N] -> y[N]")
    def copied(x: Any, y: Any, n: int) -> None:
        y.copy_(x)

    copied.implementation(lambda x, y, n: y.copy_(x), name="misled", valid=lambda sizes: sizes["M"] > 3)
    copied.implementation(lambda x, y, n: y.copy_(x), name="unsure", cost=lambda sizes: 1 / (sizes["N"] - 5))
    for n in (5, 6, 5):
        copied(torch.ones(n), y := torch.zeros(n))
        assert y.tolist() == [1.0] * n
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "valid= of implementation 'misled' of kernel 'copied' raised KeyError: 'M' at N=5; it is not used where that is so.",
        "cost= of implementation 'unsure' of kernel 'copied' raised ZeroDivisionError: division by zero at N=5; it is taken for "
        "0.001 s there.",
    ]


def test_a_tensor_that_requires_a_gradient_is_refused_and_not_silently_left_without() -> None:
    x, weight, y = torch.randn(4, 6), torch.randn(6, requires_grad=True), torch.empty(4, 6)
    with pytest.raises(InvalidInput, match=r"argument 'weight' of kernel 'rms_norm' requires .* @rms_norm.gradient, .*no_grad"):
        rms_norm(x, weight, y)
    with torch.no_grad():
        rms_norm(x, weight, y)
    rms_norm(x, weight.detach(), y)


def test_one_that_has_a_prediction_keeps_no_other_from_being_measured(empty_cache: Path) -> None:
    @polytile.kernel("x[N] -> y[N]")
    def copied(x: Any, y: Any, n: int) -> None:
        y.copy_(x)

    copied.implementation(lambda x, y, n: y.copy_(x), name="predicted", cost=lambda sizes: 1e-6)
    copied.implementation(lambda x, y, n: y.copy_(x), name="unpredicted")
    copied.implementation(lambda x, y, n: y.copy_(x), name="slow", cost=lambda sizes: 1.0)
    copied(torch.ones(70), torch.zeros(70))
    (decision,) = copied.decisions
    measured = {standing.candidate for standing in decision.standings if standing.seconds == standing.seconds}
    assert measured == {"predicted", "unpredicted"}


MAIN = """
import polytile, torch

@polytile.kernel("x[N] -> y[N]")
def copied(x, y, n):
    y.copy_(x)

@copied.implementation
def at_once(x, y, n):
    y.copy_(x)

copied(torch.ones(9), torch.zeros(9))
print(*(standing.candidate for standing in copied.decisions[0].standings if standing.seconds > 0))
"""


def test_what_a_script_itself_defines_runs_in_it_without_a_warning(tmp_path: Path, empty_cache: Path) -> None:
    (tmp_path / "script.py").write_text(MAIN)
    words = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert (done.stdout, done.stderr) == ("at_once\n", "")


def test_it_is_not_asked_where_it_says_that_it_cannot_run(empty_cache: Path) -> None:
    call(40, 24)
    (decision,) = [d for d in rms_norm.decisions if dict(d.sizes)["M"] == 40]
    assert "by_rows" not in {standing.candidate for standing in decision.standings}


def test_kernels_from_one_text_with_other_captured_values_are_kept_apart() -> None:
    double, triple = scaled_by(2.0), scaled_by(3.0)
    y = torch.ones(5)
    double(y)
    triple(y)
    assert y.tolist() == [6.0] * 5


X, WEIGHT, Y = torch.ones(4, 6), torch.ones(6), torch.ones(4, 6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((X, WEIGHT), "kernel 'rms_norm' takes 3 tensors, x, weight, y; it was given x, weight and lacks y"),
        ((X, WEIGHT, Y, Y), "kernel 'rms_norm' takes 3 tensors, x, weight, y; it was given 4"),
        ((X, 3, Y), r"argument 'weight' of kernel 'rms_norm' has type int; it must be a tensor \[N\]"),
        ((X[0], WEIGHT, Y), r"argument 'x' of kernel 'rms_norm' has shape \[6\]; it must be a tensor \[M, N\]"),
        ((X, WEIGHT[1:], Y), r"'weight' .* has shape \[5\]: 5 stands where .* has N, which argument 'x' says is 6"),
        ((X, WEIGHT, Y.to("meta")), "tensors on cpu, meta; all have to be on one device"),
    ],
)
def test_arguments_that_do_not_fit_are_named(given: tuple[torch.Tensor, ...], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        rms_norm(*given)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x[M", r"cannot be read at 'x\[M'; write it as 'x\[M, N\], weight\[N\] -> y\[M, N\]'"),
        ("x[M] y[M] -> z[M]", "cannot be read at"),
        ("x[M+1] -> y[M]", "cannot be read at"),
        ("x[..., M, ...] -> y[M]", "cannot be read at"),
        ("x[M], x[M] -> y[M]", "cannot be read at"),
        ("x[M], y[M]", "no tensor that is written"),
        ("x[M] -> x[N]", "gives 'x' two different shapes"),
    ],
)
def test_a_signature_that_cannot_be_read_says_where(text: str, said: str) -> None:
    with pytest.raises(SignatureError, match=said):
        polytile.kernel(text)(normed)  # type: ignore[arg-type]


def test_the_decorator_without_a_signature_says_what_it_takes() -> None:
    with pytest.raises(SignatureError, match=r"takes a signature, as 'x\[M, N\].*; it was given <function normed"):
        polytile.kernel(normed)  # type: ignore[arg-type]


def test_a_reduction_over_what_is_no_size_is_refused() -> None:
    with pytest.raises(SignatureError, match=r"reduction= names 'K', .* it has M, N"):
        polytile.kernel("x[M, N] -> y[M]", reduction=["N", "K"])(normed)  # type: ignore[arg-type]
    with pytest.raises(SignatureError, match=r"reduction= takes a list of sizes' names, as \['N'\]; it was given 'MN'"):
        polytile.kernel("x[MN] -> y[MN]", reduction="MN")(normed)  # type: ignore[arg-type]


def test_a_signature_has_roles_numbers_and_scalars() -> None:
    read = signature.parsed("x[M, 4], s[], y[M] -> y[M]")
    assert read.tensors == (("x", ("M", "4"), "in"), ("s", (), "in"), ("y", ("M",), "inout"))
    assert read.sizes("k", (torch.ones(3, 4), torch.ones(()), torch.ones(3))) == (3,)
    with pytest.raises(InvalidInput, match="5 stands where .* has 4"):
        read.sizes("k", (torch.ones(3, 5), torch.ones(()), torch.ones(3)))


@pytest.mark.parametrize("text", ["x[M, N], weight[N] -> y[M, N]", "x[M, 4], s[], y[M] -> y[M]", "x[M] -> y[M]", "s[] -> y[3]"])
def test_sizes_that_are_read_by_place_are_those_of_the_names(text: str) -> None:
    read = signature.parsed(text)
    lengths = dict(zip(read.size_names, (5, 7), strict=False))
    tensors = [torch.ones(shape) for shape in read.shapes(lengths).values()]
    by_place = read.sizes_by_place
    assert by_place is not None and by_place(tensors) == read.sizes("k", tensors) == tuple(lengths.values())
    last = tensors[-1]
    for other in (last[None], last.new_ones([*last.shape[:-1], 9]), last.numpy()):
        assert by_place([*tensors[:-1], other]) is None


def test_open_dimensions_are_not_read_by_place() -> None:
    assert signature.parsed("x[..., N] -> y[..., N]").sizes_by_place is None


def test_the_examples_of_the_page_run(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a module, as users have them: an implementation is then found by worker processes."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "page_of_kernels.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(str(tmp_path))
    page = importlib.import_module("page_of_kernels")
    x, weight = torch.randn(8, 40), torch.randn(40)
    y = torch.empty_like(x)
    page.rms_norm(x, weight, y)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (40,), weight, 1e-6))
    doubled = torch.nn.functional.rms_norm(x * 2, (40,), weight, 1e-6)
    torch.testing.assert_close(page.compiled(x, weight), doubled + 1)
    given, expected = (x.clone().requires_grad_() for _ in range(2))
    page.block(given, weight).square().sum().backward()
    (torch.nn.functional.rms_norm(expected * 2, (40,), weight, 1e-6) + 1).square().sum().backward()
    torch.testing.assert_close(given.grad, expected.grad)


CALLING = """
import torch

import polytile

with open({counted!r}, "a") as file:
    file.write(".")

@polytile.kernel("x[N] -> y[N]")
def double(x, y, n):
    y.copy_(2 * x)

@double.implementation
def added(x, y, n):
    torch.add(x, x, out=y)

@double.implementation
def multiplied(x, y, n):
    torch.mul(x, 2, out=y)

double(torch.ones(3), torch.empty(3))
"""


def test_a_module_that_calls_its_kernels_when_imported_starts_no_chain_of_workers(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = tmp_path / "imports"
    (tmp_path / "calling_kernels.py").write_text(CALLING.format(counted=str(counted)))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("calling_kernels")
    assert counted.read_text() == ".."  # here, and in the one worker


def test_what_a_partial_a_method_or_an_object_calls_tells_it_from_others() -> None:
    class Doubling:
        def __call__(self, x: torch.Tensor, y: torch.Tensor, n: int) -> None:
            torch.mul(x, 2, out=y)

        def method(self, x: torch.Tensor, y: torch.Tensor, n: int) -> None:
            torch.add(x, x, out=y)

    class Tripling:
        def __call__(self, x: torch.Tensor, y: torch.Tensor, n: int) -> None:
            torch.mul(x, 3, out=y)

    Tripling.__qualname__ = Doubling.__qualname__  # as if it had been edited
    partials = (functools.partial(normed, eps=1), functools.partial(normed, eps=2), functools.partial(normed, 1))
    runs = (Doubling(), Tripling(), Doubling().method, Doubling().__call__, *partials, normed)
    hashes = [Implementation("one", run).source_hash for run in runs]  # type: ignore[arg-type]
    assert len(set(hashes)) == len(runs)
    assert Implementation("one", Doubling()).source_hash == hashes[0]


def test_names_of_implementations_differ() -> None:
    kernel = Kernel(signature.parsed("-> y[N]"), lambda y, n: None, (), {})
    kernel.implementation(lambda y, n: None, name="one")
    for name in ("one", "reference"):
        with pytest.raises(SignatureError, match=f"cannot name an implementation {name!r}; .* other than reference, one"):
            kernel.implementation(lambda y, n: None, name=name)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, r"has to be a function of 2 arguments, \(y, N\); it was given 3"),
        (lambda y: None, r"has to be a function of 2 arguments, \(y, N\), and cannot be called so"),
        (functools.partial(lambda factor, y, n: None, 2), "has to have a name: write a def; it was given functools.partial"),
    ],
)
def test_a_reference_that_does_not_take_the_signature_is_refused(given: Any, said: str) -> None:
    with pytest.raises(SignatureError, match=said):
        polytile.kernel("-> y[N]")(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"function": lambda y: None}, "implementation .<lambda>. of kernel .* has to be a function of 2 arguments"),
        ({"function": lambda y, n: None, "valid": 3}, "valid= of implementation '<lambda>' takes a function of the sizes"),
        ({"function": lambda y, n: None, "cost": 1e-6}, "cost= of implementation .*; it was given 1e-06"),
    ],
)
def test_an_implementation_that_cannot_be_called_or_asked_is_refused(given: dict[str, Any], said: str) -> None:
    kernel = Kernel(signature.parsed("-> y[N]"), lambda y, n: None, (), {})
    with pytest.raises(SignatureError, match=said):
        kernel.implementation(**given)


def test_a_reference_that_returns_its_results_is_refused_before_anything_is_taken_for_right() -> None:
    @polytile.kernel("x[N] -> y[N]", options={"persist": False})
    def doubled(x: torch.Tensor, y: torch.Tensor, N: int) -> torch.Tensor:
        return x * 2

    doubled.implementation(lambda x, y, N: y.copy_(x * 3), name="wrong")
    doubled.implementation(lambda x, y, N: y.copy_(x * 2), name="right")
    with pytest.raises(SignatureError, match=r"returned Tensor; it has to write its results to y, as in y.copy_"):
        doubled(torch.randn(9), torch.empty(9))


def test_a_keyword_that_no_tensor_has_is_named() -> None:
    kernel = polytile.kernel("x[N] -> y[N]")(copied)
    with pytest.raises(InvalidInput, match=r"it was given x, besides out and lacks y"):
        kernel(torch.randn(9), out=torch.empty(9))


def copied(x: torch.Tensor, y: torch.Tensor, N: int) -> None:
    y.copy_(x)
