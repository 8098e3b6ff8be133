"""Under which conditions kernels are shared, decisions hold and plans are followed: every option, torch's settings, budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import polytile
from polytile import options
from polytile.compiler import programs as compiler
from polytile.dispatch import planfile
from polytile.dispatch.conditions import conditions
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.planfile import Plan
from polytile.dispatch.registry import define
from polytile.errors import NotInPlan
from polytile.facts import Threads
from polytile.wrapper import Wrapped, register_backend
from polytile.wrapper.python import wrap
from tests.dispatch.helpers import SPEC, Fake, arguments

CPU = torch.device("cpu")

OTHER: dict[str, Any] = {
    "cache_dir": "/tmp/elsewhere", "store": "/tmp/other.sqlite3", "cxx": "clang++", "compile_workers": 3, "tune": "off",
    "gpu_cache": "cold", "stall": "compile", "progress": "lines", "isolation": "never", "force": "a", "plan": "/tmp/p",
    "plan_missing": "error", "metrics": "/tmp/m.csv", "random": "philox", "wrapper": "marked", "sources": "library",
    "collect": "/tmp/c.sqlite3", "packed_weights_mib": 0, "configs": "exhaustive", "on_failure": "library",
    "builder": "process", "front_door": "check", "cuda_graphs": "auto", "cutlass": "/tmp/cutlass",
    "nvcc": "/tmp/nvcc", "record_sizes": "/tmp/sizes.json",
}  # fmt: skip
"""A value other than the one in tests, of options that are neither numbers nor switches."""


def other_value(option: options.Option) -> Any:
    if option.name in OTHER:
        return OTHER[option.name]
    value = options.get(option.name)
    if option.choices:
        return next(choice for choice in option.choices if choice != value)
    return not value if option.type is bool else value + 1


REGISTERED = (
    options.Option("mine_level", int, 3, "Changes what my kernels do."),
    options.Option("mine_text", int, 3, "Stands in their text.", keys=options.PROGRAMS),
    options.Option("mine_colour", int, 3, "Changes what I print.", keys=options.NOTHING),
)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    options.register(*REGISTERED)
    yield
    options.unregister(*(option.name for option in REGISTERED))


@pytest.mark.parametrize("option", [*options.TABLE, *REGISTERED], ids=lambda option: option.name)
def test_two_values_of_an_option_give_two_kernels_unless_it_is_declared_not_to(option: options.Option) -> None:
    candidates = [Fake("a"), Fake("b")]
    first = define(SPEC, candidates)
    assert define(SPEC, candidates) is first
    before, other = conditions(CPU), other_value(option)
    assert other != options.get(option.name)
    with options.override(**{option.name: other}):
        second, now = define(SPEC, candidates), conditions(CPU)
    assert (second is not first) is (now != before) is (option.keys == options.KERNELS)
    if option.keys == options.KERNELS:
        assert second.options[option.name] == options.check({option.name: other})[option.name]
    assert define(SPEC, candidates) is first and conditions(CPU) == before


@pytest.mark.parametrize("name", ["mine_level", "mine_text", "mine_colour"])
def test_registered_options_are_in_the_keys_of_measurements_and_plans_where_they_keep_kernels_apart(name: str) -> None:
    def keys() -> tuple[Any, ...]:
        kernel = MultiKernel(SPEC, [Fake("a"), Fake("b")])
        kernel(*arguments(32))
        return kernel.request(kernel.dispatcher.key_of(32, 64), (32, 64), None).environment, planfile.pinned_by(kernel)[0].key

    before = keys()
    with options.override(**{name: 4}):
        measured, plan = keys()
    assert (measured != before[0]) is (plan != before[1]) is (name == "mine_level")


class Noisy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(64, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.lin(x.exp()).sin(), 0.5).softmax(-1)


def text_of(model: torch.nn.Module, given: dict[str, Any]) -> tuple[Any, ...]:
    """What tells the program of `model` from another: its wrapper, and the text and the candidates of its kernels."""
    torch._dynamo.reset()
    polytile.reset()
    run = polytile.compile(model, options={"tune": "off", **given})
    with torch.no_grad():
        run(torch.randn(6, 64))
    (program,) = compiler.compiled_programs()
    kernels = [(k.spec.kernel, k.names, [c.source_hash for c in k.candidates[:2]]) for k in program.multikernels]
    return program.source, kernels


def test_two_values_of_an_option_that_is_in_the_text_of_programs_give_two_programs() -> None:
    def marked(name: str, lines: Any) -> Wrapped:
        return dataclasses.replace(made := wrap(name, lines), source=f"# marked\n{made.source}")

    register_backend("marked", marked)
    model = Noisy()
    before = text_of(model, {})
    for option in options.TABLE:
        if option.keys == options.PROGRAMS:
            assert text_of(model, {option.name: other_value(option)}) != before, option.name


@pytest.mark.parametrize("sources", ["cpp,library", "library,cpp", "triton,cpp", ""])
def test_candidates_of_a_product_come_in_the_order_of_their_sources(sources: str) -> None:
    run = polytile.compile(lambda x, w: x @ w, options={"tune": "off", "sources": sources})
    run(torch.randn(12, 48), torch.randn(48, 40))
    (kernel,) = compiler.compiled_programs()[-1].multikernels
    origins = list(dict.fromkeys(candidate.origin for candidate in kernel.candidates))
    assert origins == [source for source in (sources or "library,cpp").split(",") if source != "triton"]


# What used to leak from one program into another.


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def again(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def kernels_of(run: Any, *sizes: tuple[int, int]) -> MultiKernel:
    for size in sizes:
        run(torch.randn(*size))
    (kernel,) = compiler.compiled_programs()[-1].multikernels
    return kernel


def test_a_kernel_forced_for_one_program_is_chosen_for_the_next() -> None:
    forced, free = polytile.compile(rows), polytile.compile(again, options={"tune": "off"})
    with options.override(force="looped t1"):
        first = kernels_of(forced, (40, 300))
    second = kernels_of(free, (40, 300))
    assert {d.link for d in first.decisions} == {"forced"} and {d.link for d in second.decisions} == {"prior"}
    forced(torch.randn(7, 5000))
    assert {d.link for d in first.decisions} == {"forced"}, "what was compiled in the block keeps its options"


def test_another_number_of_threads_decides_anew() -> None:
    run, threads = polytile.compile(rows, options={"tune": "off"}), torch.get_num_threads()
    first = kernels_of(run, (40, 300))
    try:
        torch.set_num_threads(threads + 1)
        second = kernels_of(run, (40, 300))
    finally:
        torch.set_num_threads(threads)
    for kernel, team in ((first, threads), (second, threads + 1)):
        assert Threads(team) in kernel.decisions[0].problem.layouts


def test_deterministic_mode_keeps_no_decision_that_a_clock_made() -> None:
    run = polytile.compile(rows, options={"persist": False})
    assert {d.link for d in kernels_of(run, (40, 300)).decisions} == {"measured"}
    torch.use_deterministic_algorithms(True)
    try:
        assert "measured" not in {d.link for d in kernels_of(run, (40, 300)).decisions}
    finally:
        torch.use_deterministic_algorithms(False)


def test_each_program_has_the_seconds_for_measuring_that_it_was_given() -> None:
    given = {"program_seconds": 100.0}
    first = kernels_of(polytile.compile(rows, options=given), (40, 300))
    spent = first.budget.left() if first.budget is not None else 100.0
    second = kernels_of(polytile.compile(again, options=given), (41, 3000))
    assert first.budget is not None and second.budget is not None and first.budget is not second.budget
    assert first.budget.left() == spent < 100.0 and second.budget.left() < 100.0


def test_a_backward_graph_has_the_options_of_its_forward_graph_whenever_it_is_compiled() -> None:
    x = torch.randn(8, 30, requires_grad=True)
    with options.override(force="looped t1"):
        y = polytile.compile(rows)(x)
    y.sum().backward()
    *_, backward = compiler.compiled_programs()
    assert backward.name.startswith("backward")
    assert all(kernel.options["force"] == "looped t1" for kernel in backward.multikernels)


def test_a_kernel_written_by_hand_decides_under_the_options_and_settings_of_each_call() -> None:
    @polytile.kernel("x[M] -> y[M]", options={"tune": "off"})
    def twice(x: torch.Tensor, y: torch.Tensor, M: int) -> None:
        y.copy_(2 * x)

    @twice.implementation(cost=lambda sizes: 1e-9)
    def quick(x: torch.Tensor, y: torch.Tensor, M: int) -> None:
        y.copy_(x + x)

    def chosen() -> str:
        before = len(twice.decisions)
        twice(torch.randn(8), torch.empty(8))
        return twice.decisions[-1].candidate if len(twice.decisions) > before else "as before"

    assert chosen() == "quick"
    with options.override(force="reference"):
        assert chosen() == "reference"
        torch.set_num_threads((threads := torch.get_num_threads()) + 1)
        try:
            assert chosen() == "reference" and chosen() == "as before"
        finally:
            torch.set_num_threads(threads)
    assert chosen() == "as before"


def test_a_plan_is_followed_under_the_conditions_that_it_was_made_under(tmp_path: Path) -> None:
    def pair(**given: Any) -> MultiKernel:
        return MultiKernel(SPEC, [Fake("a"), Fake("b")], given)

    made = pair(force="b", threads=3, mine_level=1)
    made(*arguments(32))
    Plan(tuple(planfile.pinned_by(made)), planfile.here()).write(tmp_path / "p")
    following = {"plan": str(tmp_path / "p"), "plan_missing": "error"}
    pair(threads=3, mine_level=1, **following)(*arguments(32))
    told = "the plan pins it for threads=3, option mine_level=1, here are threads=5, option mine_level=1"
    with pytest.raises(NotInPlan, match=told):
        pair(threads=5, mine_level=1, **following)(*arguments(32))
    with pytest.raises(NotInPlan, match="here are threads=3 "):
        pair(threads=3, **following)(*arguments(32))
