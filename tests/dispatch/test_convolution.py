"""Convolutions whose library kernel is chosen: candidates agree with eager at all sizes, by one compile. In place of cuDNN's
operator, which a CPU does not have, stands one that notes its flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polytile
from polytile.candidates.library import convolution_backward
from polytile.candidates.library.convolution import candidates
from polytile.candidates.library.convolution_backward import hand_over
from polytile.compiler.programs import CompiledProgram, compiled_programs
from polytile.counters import counters
from polytile.dispatch.convolution import define_convolution
from polytile.frontend.lower import convolution as lowering
from polytile.runtime.chosen_convolution import ChosenConvolution, ConvolutionProblem, GradientProblem
from tests.behaviour.helpers import compiled

CPU = torch.device("cpu")
LAST = torch.channels_last
Flags = tuple[bool, bool, bool]


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[bool, Flags]]]:
    """Of cuDNN's calls: whether images are channels-last, and the flags."""
    noted: list[tuple[bool, Flags]] = []

    def convolution(
        x: Tensor, w: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *flags: bool, out: Tensor
    ) -> Tensor:
        assert not x.requires_grad or not torch.is_grad_enabled()
        last = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
        noted.append((x.is_contiguous(memory_format=last), flags))  # type: ignore[arg-type]
        return out.copy_(torch.convolution(x, w, None, stride, padding, dilation, False, [0] * len(stride), groups))

    polytile.reset()
    def transposed(
        x: Tensor, w: Tensor, padding: Any, more: Any, stride: Any, dilation: Any, groups: int, *flags: bool
    ) -> Tensor:
        noted.append((x.is_contiguous(memory_format=torch.channels_last), flags))  # type: ignore[arg-type]
        return torch.convolution(x, w, None, stride, padding, dilation, True, more, groups)

    monkeypatch.setattr(lowering, "has_cudnn", lambda device: True)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("cudnn_convolution.out", convolution, "CPU")
        library.impl("cudnn_convolution_transpose", transposed, "CPU")
        yield noted


def chosen_in(programs: Sequence[CompiledProgram]) -> list[str]:
    """The convolutions of programs whose kernels are chosen."""
    kernels = [kernel for program in programs for kernel in program.multikernels]
    return [kernel.spec.name for kernel in kernels if kernel.spec.family.startswith("convolution")]


def problem(**given: Any) -> ConvolutionProblem:
    usual = {"weight": (8, 3, 3, 3), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
    return ConvolutionProblem(**{"dtype": torch.float32, **usual, "bias": True, "last": False, **given})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "given",
    [{}, {"last": True}, {"weight": (4, 2, 1, 3, 2), "stride": (1, 2, 1), "padding": (0, 1, 1), "dilation": (1, 1, 2)}],
    ids=["planes", "last", "3-D"],
)
def test_candidates_give_eager_s_result(given: dict[str, Any], bias: bool) -> None:
    made = problem(bias=bias, **given)
    size = dict(zip(made.size_names, (3, 7, 9, 8) if made.spatial == 3 else (3, 9, 8), strict=True))
    args = made.make_args(size, CPU)
    x, w, b, out = made.operands(args)
    want = torch.convolution(x, w, b, made.stride, made.padding, made.dilation, False, [0] * made.spatial, 2)
    assert out.shape == want.shape and out.stride() == want.stride()
    names = []
    for candidate in candidates(made, CPU):
        if candidate.valid(size):
            candidate.entry().call(*args)  # type: ignore[union-attr]
            torch.testing.assert_close(out, want, msg=candidate.name)
            out.fill_(float("nan"))
            names.append(candidate.name)
    assert names == ["library", "timed", *([] if made.last else ["last", "last timed"])]


def test_what_is_timed_has_a_plan_of_its_own_and_its_price(calls: list[tuple[bool, Flags]]) -> None:
    made = problem()
    size = {"N": 2, "H": 9, "W": 8}
    args = made.make_args(size, CPU)
    _, timed, last, both = candidates(made, CPU)
    for candidate in (timed, last, both):
        candidate.entry().call(*args)  # type: ignore[union-attr]
    assert [images for images, _ in calls] == [False, True, True]
    assert [flags[:2] for _, flags in calls] == [(True, True), (False, False), (True, True)], "benchmark, deterministic"
    assert timed.per_size and both.per_size and not last.per_size
    assert timed.cost(size) > 0.1 and both.cost(size) > 0.1 > last.cost(size), "no prediction chooses what times kernels"


def test_conversions_are_predicted_near_enough_to_be_measured() -> None:
    """In planes cuDNN converts images itself; of a prediction that counted this on one side alone, conversions would be clear
    losers and never measured: windows of each channel, whose conversions take longer than the rest, gain most."""
    each = problem(weight=(64, 1, 3, 3), groups=64)
    forward = candidates(each, CPU)
    backward = convolution_backward.candidates(GradientProblem(replace(each, bias=False), True, True, False), CPU)
    for library, _, last, _ in (forward, backward):
        cost = {candidate.name: candidate.cost({"N": 16, "H": 112, "W": 112}) for candidate in (library, last)}
        assert cost["library"] < cost["last"] < 1.3 * cost["library"]


def test_a_result_without_elements_is_none_of_a_candidate_s() -> None:
    assert not any(candidate.valid({"N": 2, "H": 0, "W": 8}) for candidate in candidates(problem(padding=(0, 2)), CPU))


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["planes", "last"])
def test_candidates_give_eager_s_gradients(last: bool, wanted: tuple[bool, bool]) -> None:
    made = GradientProblem(problem(bias=False, last=last), *wanted, weight_last=last)
    size = {"N": 3, "H": 9, "W": 8}
    args = made.make_args(size, CPU)
    want = [each.clone() for each in made.eager(made.operands(args)) if each is not None]
    names = []
    for candidate in convolution_backward.candidates(made, CPU):
        if candidate.valid(size):
            candidate.entry().call(*args)  # type: ignore[union-attr]
            got = [each for each in made.operands(args)[3:] if each is not None]
            torch.testing.assert_close(got, want, msg=candidate.name)
            assert all(one.is_contiguous(memory_format=LAST if last else torch.contiguous_format) for one in got)
            for each in got:
                each.fill_(float("nan"))
            names.append(candidate.name)
    kinds = ["library", "timed", *([] if last else ["last", "last timed"])]
    assert names == [name for name in kinds if wanted[0] or "timed" not in name]


def test_a_gradient_takes_memory_over_or_is_copied() -> None:
    result = torch.randn(3, 4)
    own, part = torch.empty(3, 4), torch.empty(6, 4)[1:4]
    before = part.data_ptr()
    for out in (own, part):
        hand_over(out, result)
        assert torch.equal(out, result)
    assert own.data_ptr() == result.data_ptr() and part.data_ptr() == before


def test_equal_problems_share_a_kernel() -> None:
    first, second = (define_convolution(ChosenConvolution(problem(), CPU)) for _ in range(2))
    assert first is second and first is not define_convolution(ChosenConvolution(problem(bias=False), CPU))


@pytest.mark.parametrize("last", [False, True], ids=["planes", "last"])
def test_a_program_chooses_at_each_size_and_says_so(last: bool, calls: list[tuple[bool, Flags]]) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).requires_grad_(False)
    call = compiled(module, convolutions="measured")
    for shape in ((2, 3, 9, 8), (5, 3, 20, 17), (4, 3, 3, 4)):
        x = torch.randn(shape).contiguous(memory_format=LAST if last else torch.contiguous_format)
        got, want = call(x), module(x)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    names = chosen_in(compiled_programs())
    decided = {row.candidate for row in polytile.explain(call, x).decisions if row.kernel in names}
    assert decided and decided <= {"library", "timed", "last", "last timed"} and calls
    assert len(names) == 1, "one compile"


def test_gradients_of_what_is_chosen_are_eager_s(calls: list[tuple[bool, Flags]]) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.SiLU(), nn.Conv2d(4, 4, 3, groups=2, bias=False), nn.SiLU())
    call = compiled(module, convolutions="measured")
    for shape in ((2, 3, 9, 8), (3, 3, 12, 19), (2, 3, 9, 8)):
        x = torch.randn(shape, requires_grad=True)
        leaves = x, *module.parameters()
        got, want = (torch.autograd.grad(run(x).sum(), leaves) for run in (call, module))
        torch.testing.assert_close(got, want)
        assert [each.stride() for each in got] == [each.stride() for each in want]
    families = {name.rpartition("_")[0] for name in chosen_in(compiled_programs())}
    assert calls and families == {"convolution", "convolution_backward"}


def test_a_stored_program_chooses_too(tmp_path: Path, calls: list[tuple[bool, Flags]]) -> None:
    module, x = nn.Conv2d(3, 4, 3).requires_grad_(False), torch.randn(2, 3, 9, 8)
    with polytile.options.override(cache_dir=str(tmp_path)):
        want, loaded = compiled(module, convolutions="measured")(x), counters["programs_loaded"]
        torch._dynamo.reset()
        calls.clear()
        torch.testing.assert_close(compiled(module, convolutions="measured")(x), want)
        assert counters["programs_loaded"] == loaded + 1


CASES = {
    "transposed": (nn.ConvTranspose2d(3, 4, 3), torch.randn(2, 3, 9, 8)),
    "over one dimension": (nn.Conv1d(3, 4, 3), torch.randn(2, 3, 9)),
    "in another layout": (nn.Conv2d(3, 4, 3), torch.randn(2, 3, 18, 8)[:, :, ::2]),
    "float64": (nn.Conv2d(3, 4, 3).double(), torch.randn(2, 3, 9, 8).double()),
}


@pytest.mark.parametrize("case", CASES)
def test_other_convolutions_are_left_to_the_library(case: str) -> None:
    module, x = CASES[case]
    torch.testing.assert_close(compiled(module, convolutions="measured")(x), module(x))
    assert not chosen_in(compiled_programs())


def test_eager_s_own_calls_run_unless_others_are_asked_for(calls: list[tuple[bool, Flags]]) -> None:
    module, x = nn.Conv2d(3, 4, 3).requires_grad_(False), torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(compiled(module)(x), module(x))
    assert not chosen_in(compiled_programs()) and not calls
    assert polytile.options.of_mode("max-autotune")["convolutions"] == "measured"


def test_a_weight_whose_sizes_are_known_in_a_call_is_left_to_the_library() -> None:
    call = compiled(F.conv2d, convolutions="measured")
    for filters, window in ((4, 3), (5, 2)):
        x, w = torch.randn(2, 3, 9, 8), torch.randn(filters, 3, window, window)
        torch.testing.assert_close(call(x, w), F.conv2d(x, w))
    assert not chosen_in(compiled_programs())
