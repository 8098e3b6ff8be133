"""Grouped products, generated: every config in C++ and every schedule in Triton against a loop over the groups."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp_products import product_candidates
from polytile.candidates.library.grouped import GroupedLibrary
from polytile.candidates.products import epilogue_alone, reference
from polytile.codegen.triton import interpret
from polytile.dispatch.define import LoopWork
from polytile.ir import expr
from polytile.ir.buffer import CPU
from polytile.ir.products import grouped_product
from polytile.ir.sizes import ONE
from polytile.matmul import packed_weights
from polytile.matmul.gemm_args import make_args
from polytile.matmul.gemm_kernel import ENDS, GemmKernel
from polytile.matmul.triton.schedules import generate
from polytile.matmul.triton.unit import epilogue_kernel
from polytile.problem import Config
from polytile.runtime.dispatcher import Interface
from polytile.runtime.launcher import new_dispatcher
from polytile.schedule.canonical import TensorArg
from polytile.schedule.facts import Facts
from tests.codegen.triton_gemm import CHIP, facts_of, matrix
from tests.codegen.triton_gemm import grouped_product as product

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

BF16, F32 = torch.bfloat16, torch.float32
UNITS = {"k": "columns", "m": "rows", "any": "any"}
ENDINGS: dict[str, Sequence[int]] = {
    "some": (3, 20, 33, 60), "empty": (0, 7, 7, 60), "one row each": (1, 2, 3, 4), "all in one": (0, 0, 60, 60),
    "not all": (5, 11, 40, 41), "none": (0, 0, 0, 0), "beyond": (10, 30, 70, 90),
}  # fmt: skip


def arguments(kernel: GemmKernel, ends: Sequence[int], m: int, n: int, k: int) -> list[Any]:
    """Random operands, and a result of NaNs."""
    spec, groups = kernel.spec, len(ends)
    a = matrix(1, m, k, UNITS[spec.a_layout], kernel.in_dtype)
    unit = {"n": "columns", "k": "rows", "any": "any"}[spec.b_layout]
    b = matrix(groups if spec.grouped == "m" else 1, k, n, unit, kernel.in_dtype)
    shape = (1, m, n) if spec.grouped == "m" else (groups, m, n)
    c = torch.full(shape, float("nan"), dtype=kernel.in_dtype)
    c = c if spec.c_layout == "n" else c.transpose(1, 2).contiguous().transpose(1, 2)
    ints = [groups, m, n, k]
    for tensor in (a, b, c):
        ints += [0 if len(tensor) == 1 else tensor.stride(0), *tensor.stride()[1:]]
    return [a, b, torch.tensor(ends, dtype=torch.int32), c, *ints]


def named(kernel: GemmKernel, args: Sequence[Any]) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    return dict(zip(("A", "B", ENDS, "C"), args, strict=False)), dict(zip(kernel.size_names, args[4:], strict=True))


def check(kernel: GemmKernel, args: Sequence[Any], what: object) -> None:
    a, b, ends, c = args[:4]
    expected = grouped_product(a.double(), b.double(), ends, kernel.spec.grouped)
    tolerance = 1e-5 if kernel.in_dtype == torch.float32 else 1e-2
    torch.testing.assert_close(c.double(), expected, rtol=tolerance, atol=tolerance * 30, msg=lambda text: f"{what}: {text}")
    c.fill_(float("nan"))


def one_of_each_form(candidates: Sequence[Candidate]) -> list[Candidate]:
    return list({tuple(each.config.get(name) for name in ("form", "pairs", "amx")): each for each in candidates}.values())


@pytest.mark.parametrize(
    ("axis", "dtype", "a", "b", "c"), [("m", BF16, "k", "n", "n"), ("m", F32, "any", "k", "m"), ("k", BF16, "m", "n", "n")]
)
def test_every_form_in_cpp_is_right(axis: str, dtype: torch.dtype, a: str, b: str, c: str) -> None:
    torch.manual_seed(0)
    kernel = product(axis, dtype, a, b, c)
    given = [arguments(kernel, ends, *((60, 70, 50) if axis == "m" else (50, 70, 60))) for ends in ENDINGS.values()]
    made = one_of_each_form(product_candidates(kernel, "grouped", (3,)))
    for candidate in made:
        candidate.prepare()
    for candidate in made:
        run = new_dispatcher(Interface("grouped", (0,) * len(kernel.size_names), lambda key, args, own=candidate: own.entry()))
        for args in given:
            run(*args)
            check(kernel, args, candidate)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_panels_that_were_made_before_the_call_are_those_of_each_group(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = product("m", dtype)
    kernel = replace(plain, tensors=(*plain.tensors, TensorArg(packed_weights.PANELS, torch.uint8, "in")), packed=True)
    for ends in ENDINGS.values():
        a, b, offs, c, *ints = arguments(plain, ends, 60, 150, 50)
        panels = packed_weights.panels_for(kernel, b, dict(zip(kernel.size_names, (*ints, 1), strict=True)))
        made = [each for each in product_candidates(kernel, "grouped", (3,)) if each.config["form"] == "tile_prepacked"]
        assert made
        for candidate in one_of_each_form(made):
            fields = (0,) * len(kernel.size_names)
            run = new_dispatcher(Interface("grouped", fields, lambda key, args, own=candidate: own.entry()))
            run(a, torch.full_like(b, float("nan")), offs, c, panels, *ints, 1)
            check(plain, [a, b, offs, c], candidate)


def test_threads_share_a_group_of_many_rows_and_groups_of_few_columns() -> None:
    torch.manual_seed(0)
    kernel = product("m", F32)
    for ends, m, n in (((0, 900, 901), 901, 33), ((300, 1000, 1300), 1300, 300)):
        args = arguments(kernel, ends, m, n, 40)
        (candidate,) = [each for each in product_candidates(kernel, "grouped", (7,)) if each.config["form"] == "tile_direct"][:1]
        new_dispatcher(Interface("grouped", (0,) * len(kernel.size_names), lambda key, args, own=candidate: own.entry()))(*args)
        check(kernel, args, ends)


@needs_triton
@pytest.mark.parametrize(
    ("axis", "dtype", "a", "b", "c"),
    [("m", BF16, "k", "k", "n"), ("m", F32, "m", "n", "n"), ("m", BF16, "any", "any", "m"), ("k", BF16, "m", "n", "n"),
     ("k", F32, "any", "k", "m")],
)  # fmt: skip
def test_triton_is_right(axis: str, dtype: torch.dtype, a: str, b: str, c: str) -> None:
    torch.manual_seed(0)
    kernel = product(axis, dtype, a, b, c)
    config = Config.of(variant="grouped", m=16, n=32, k=32, stages=2, warps=2, group=2, places=1)
    for number, ends in enumerate(ENDINGS.values()):
        args = arguments(kernel, ends, *((60, 40, 50) if axis == "m" else (20, 40, 60)))
        facts = Facts(wide=True) if number % 3 == 0 else facts_of(kernel, args)
        swapped = {"swapped": 1} if number % 2 and b == "k" and axis == "m" else {}
        made = generate(kernel, Config.of(**{**dict(config.values), **swapped}), facts, CHIP)
        interpret.run(made, *named(kernel, args))
        check(kernel, args, ends)


@needs_triton
@pytest.mark.parametrize(("b", "c"), [("k", "n"), ("n", "m")])
@pytest.mark.parametrize("stores", [0, 2])
def test_operands_through_tensor_descriptors(b: str, c: str, stores: int) -> None:
    torch.manual_seed(0)
    kernel = product("m", BF16, "k", b, c)
    config = Config.of(variant="grouped_tma", m=16, n=32, k=16, stages=2, warps=2, group=2, places=1, stores=stores)
    for ends in ENDINGS.values():
        args = arguments(kernel, ends, 64, 48, 48)
        made = generate(kernel, config, facts_of(kernel, args), CHIP)
        assert len(made.launches[0].descriptors) == 2
        interpret.run(made, *named(kernel, args))
        check(kernel, args, ends)


@needs_triton
@pytest.mark.parametrize("why", ["wide", "pitch", "layout", "rows through groups"])
def test_operands_that_no_descriptor_describes_are_loaded_through_pointers(why: str) -> None:
    torch.manual_seed(0)
    kernel = product("m", BF16, "m" if why == "rows through groups" else "k", "any" if why == "layout" else "k")
    args = arguments(kernel, (5, 11, 40, 41), 64, 48, 50 if why == "pitch" else 48)
    facts = Facts(wide=True) if why == "wide" else facts_of(kernel, args)
    config = Config.of(variant="grouped_tma", m=16, n=32, k=16, stages=2, warps=2, group=2, places=1, stores=2)
    made = generate(kernel, config, facts, CHIP)
    assert not made.launches[0].descriptors
    interpret.run(made, *named(kernel, args))
    check(kernel, args, why)


@needs_triton
def test_groups_beyond_those_that_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytile.matmul.triton.grouped.GROUPS", 2)
    kernel = product("m", F32)
    args = arguments(kernel, (3, 3, 20, 21, 40, 40, 44), 48, 32, 16)
    config = Config.of(variant="grouped", m=16, n=32, k=16, stages=2, warps=2, group=8, places=1)
    made = generate(kernel, config, Facts(), CHIP)
    interpret.run(made, *named(kernel, args))
    check(kernel, args, "two at once")


def test_the_library_and_the_reference_agree() -> None:
    for axis in "mk":
        kernel = product(axis, torch.float32)
        for ends in ENDINGS.values():
            args = arguments(kernel, ends, 60, 60, 60)
            GroupedLibrary(kernel, None).entry().call(*args)
            check(kernel, args, ends)
            reference(kernel)(*args)
            check(kernel, args, ends)


def test_random_arguments_are_groups_up_to_the_end() -> None:
    for axis in "mk":
        args = make_args(product(axis, torch.bfloat16), {"batch": 5, "M": 40, "N": 24, "K": 32})
        assert (args[2].diff() >= 0).all() and args[2][-1] == (40 if axis == "m" else 32)


@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("n", [64, 60])
def test_one_kernel_after_the_library_writes_zeros_beyond_the_last_group(
    epilogue: bool, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where the library leaves there what it finds, and pads rows to 16 bytes."""
    torch.manual_seed(0)
    monkeypatch.setattr("polytile.candidates.library.grouped.at_once", lambda kernel, target: True)
    monkeypatch.setattr(torch, "_grouped_mm", padded_product)
    plain = product("m", BF16, "k", "k")
    kernel = with_activation(plain) if epilogue else plain
    alone = epilogue_alone(kernel)
    library = GroupedLibrary(kernel, LoopWork(alone, (), CPU).define(), CPU)
    for ends in ENDINGS.values():
        a, b, offs, c, *ints = arguments(plain, ends, 60, n, 64)
        ints = [*ints[:10], *ints[:3], *ints[10:]] if epilogue else ints
        library.entry().call(a, b, offs, c, *ints)
        expected = grouped_product(a.double(), b.double(), offs, "m")
        torch.testing.assert_close(c.double(), expected.relu() if epilogue else expected, rtol=1e-2, atol=0.3)
        ((_, passed),) = library.inner_calls(ints)
        assert list(passed) == [dict(zip(kernel.size_names, ints, strict=True))[s.name] for s in alone.symbols]


def padded_product(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """What `torch._grouped_mm` returns on a GPU."""
    rows = grouped_product(a[None], b, offs, "m")[0]
    rows[max(0, int(offs[-1])) :] = float("nan")
    return rows.new_empty(len(rows), -(-rows.shape[1] // 8) * 8)[:, : rows.shape[1]].copy_(rows)


def with_activation(kernel: GemmKernel) -> GemmKernel:
    """A ReLU of the product as the epilogue."""
    plain = epilogue_kernel(kernel)
    one = replace(plain.loop, axes=(replace(plain.loop.axes[0], size=ONE), *plain.loop.axes[1:]))
    zero = expr.const(0.0, torch.float32)
    loop = one.map_roots(lambda roots: tuple(expr.op("maximum", root.dtype, root, zero) for root in roots))
    spec = replace(kernel.spec, has_epilogue=True)
    return replace(kernel, spec=spec, epilogue=loop, symbols=plain.symbols)
