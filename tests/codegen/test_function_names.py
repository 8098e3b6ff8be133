"""Profilers tell kernels apart: compiled functions bear the names of kernel and candidate, and equal kernels stay one."""

from __future__ import annotations

import subprocess

import pytest

from polytile.candidates import cpp_loops
from polytile.candidates.cpp import CppCandidate
from polytile.candidates.triton import WORKER, job_of
from polytile.codegen.function_names import ENTRY, MOST_LETTERS, symbol_of
from polytile.codegen.triton.generate import generate
from polytile.runtime.cuda import cubins, workers
from tests.codegen.helpers import kernel_of
from tests.codegen.test_triton_golden import GOLDEN


def test_a_symbol_is_a_bounded_identifier() -> None:
    assert symbol_of("softmax_3f2a1b4c", "persistent x=1 warps=4") == "polytile_softmax_3f2a1b4c_persistent_x_1_warps_4"
    assert symbol_of("mm_3f2a1b4c", "split 64x64x64 s4 w4", 1) == "polytile_mm_3f2a1b4c_split_64x64x64_s4_w4_launch1"
    assert symbol_of("2d.süß", "t") == "polytile_2d_s_t"
    assert len(symbol_of("long" * 50, "tile")) == MOST_LETTERS


def test_a_shared_object_shows_the_kernels_name_and_equal_kernels_share_it(empty_cache: object) -> None:
    kernel = kernel_of(GOLDEN["softmax_split"][0]())

    def made(origin: str) -> CppCandidate:
        cpp_loops._made.clear()
        first = cpp_loops.loop_candidates(kernel, (origin,), 1)[0]
        assert isinstance(first, CppCandidate)
        return first

    first, second = made("aten.softmax.default"), made("aten.exp.default")
    assert first.source_hash == second.source_hash
    (library,), (other,) = first.libraries(), second.libraries()
    shown = subprocess.run(["nm", "-D", str(library.path)], capture_output=True, text=True, check=True).stdout
    schedule = first.name.removesuffix(" t1").replace(" ", "_")
    assert f" T polytile_softmax_{kernel.digest[:8]}_{schedule}" in shown and f" T {ENTRY}" in shown
    assert other.path == library.path and second.entry().address == first.entry().address


def test_a_cubin_shows_the_name_and_the_text_that_identifies_a_kernel_does_not() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    make, config, facts = GOLDEN["softmax_split"]
    made = generate(kernel_of(make()), config, facts)
    assert ENTRY in made.text and "softmax" not in made.text
    try:
        found = [
            cubins.request(cubins.Order("softmax", WORKER, job_of(one, 90, symbol_of("softmax", "split", k)), "test"))
            for k, one in enumerate(made.launches)
        ]
        symbols = [promise.result(250).facts.symbol for promise in found]
    finally:
        workers.reset()
    assert symbols == [f"polytile_softmax_split_launch{k}" for k in range(len(made.launches))]
    assert all(symbol.encode() in promise.result().binary for symbol, promise in zip(symbols, found, strict=True))
