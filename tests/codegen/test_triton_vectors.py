"""How wide a kernel's loads are where 16 does not divide the length of rows: by the powers of two that a regime knows of."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polytile.candidates.triton import WORKER, job_of
from polytile.codegen.triton import interpret
from polytile.codegen.triton.generate import generate
from polytile.codegen.triton.kernel import Launch
from polytile.dispatch import gpu_specs
from polytile.facts import Aligned, Divisible
from polytile.ir import expr, philox
from polytile.ir.philox import COUNTERS_PER_OPERATOR
from polytile.problem import Config
from polytile.runtime.cuda import cubins, workers
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.gpu import vectors
from tests.codegen.helpers import BF16, F32, I8, I64, P0, P1, S0, S1, S2, Case, kernel_of, load, loop, op, store
from tests.codegen.test_loops_golden import column_sum, layer_norm
from tests.codegen.test_triton_golden import half_norm, transpose_add

WIDTHS = {1: "U16", 2: "32", 4: "64", 8: "128"}
"""Bits of a load of bfloat16 in machine code, by the power of two that divides the length of rows."""
LOADS = re.compile(r"\bLDG\.E(?:\.\w+)*?\.?(U16|64|128)?(?:\.CONSTANT)? R")


def flat_copy() -> Case:
    return Case(loop([store("o", P0, load("x", P0, BF16))], {P0: S0 * S1}), {"x": BF16, "o": BF16})


def part_copy() -> Case:
    """Of what begins at an integer of the call."""
    return Case(loop([store("o", P0, load("x", P0 + 8 * S2, BF16))], {P0: S0}), {"x": BF16, "o": BF16})


def drawn() -> Case:
    """Random numbers of an operator that is not the program's first."""
    number = op("philox_uniform", load("seed", 0, I64), expr.index_value(P0 + 3 * COUNTERS_PER_OPERATOR), dtype=F32)
    return Case(loop([store("o", P0, number)], {P0: S0}), {"seed": I64, "o": F32})


def strided_copy() -> Case:
    return Case(loop([store("o", P0 * S1 + P1, load("x", P0 * S2 + P1, I8))], {P0: S0, P1: S1}), {"x": I8, "o": I8})


def test_the_integers_by_which_rows_begin_and_end_decide() -> None:
    def names(kernel: LoopKernel) -> list[str]:
        return [s.name for s in vectors.deciding_integers(kernel)]

    assert names(kernel_of(layer_norm())) == ["n1"]  # and not the number of rows
    assert names(half_norm().kernel) == ["n1"] and names(kernel_of(column_sum())) == ["n0"]
    assert names(kernel_of(transpose_add())) == ["n0", "n1"]
    assert not names(flat_copy().kernel)  # of one row whole blocks have no masks
    assert len(names(strided_copy().kernel)) == 2  # length and stride
    assert names(part_copy().kernel) == ["n1"] and not names(drawn().kernel)


def test_no_more_is_asked_than_a_vector_of_the_smallest_type_has_elements() -> None:
    assert [vectors.widest_load(k) for k in (kernel_of(layer_norm()), half_norm().kernel, strided_copy().kernel)] == [4, 8, 8]
    known = [vectors.divisors(half_norm().kernel, {"n0": 6, "n1": n}) for n in (381, 382, 380, 376, 384)]
    assert known == [(), (("n1", 2),), (("n1", 4),), (("n1", 8),), ()]
    assert vectors.divisors(kernel_of(layer_norm()), {"n0": 6, "n1": 376}) == (("n1", 4),)


def test_a_call_says_which_power_divides_its_rows() -> None:
    spec = gpu_specs.loop_spec(half_norm().kernel, ("test",), torch.device("cpu"))
    keys = spec.keys
    facts = {n: keys.facts_for_code((7, n)) for n in (381, 382, 380, 376, 384, 512)}
    assert {n: facts[n].divisor("n1") for n in facts} == {381: 1, 382: 2, 380: 4, 376: 8, 384: 16, 512: 16}
    assert facts[382] == keys.facts_for_code((7, 366)) and Divisible("n1", 2) in keys.regime(keys.fields((7, 382))).facts
    assert keys.facts_for_code((6, 382)) == keys.facts_for_code((6, 378))
    assert keys.fields((30, 382)) == keys.fields((31, 382)), "only of rows"
    views = keys.facts_for_code((7, 384), (0, 8, 2, 4))
    assert [views.divisor(tensor.name) for tensor in half_norm().kernel.tensors] == [16, 8, 2, 4]
    assert Aligned("a1", 8) in keys.facts_of_call((7, 384), (0, 8, 2, 4))


def test_rows_are_read_by_the_widest_vectors_that_divide_them_and_their_addresses() -> None:
    """In the machine code of an H100."""
    triton = pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    rows, flat = half_norm().kernel, flat_copy().kernel
    aligned = frozenset(t.name for t in rows.tensors)
    row, block = Config.of(variant="persistent", x=1, r=512, warps=1), Config.of(variant="pointwise", x=1024, warps=4)
    made = {f"n1%{by}": generate(rows, row, Facts(aligned=aligned, powers=(("n1", by),))) for by in WIDTHS}
    for by in (1, 2, 4):
        known = Facts(frozenset({"n0", "n1"}), frozenset({"a1"}), powers=(("a0", 2 * by),))
        made[f"a0@{by}"] = generate(flat, block, known)
        part = Facts(frozenset({"n0"}), frozenset({"a0", "a1"}), powers=(("n1", by),))
        made[f"n1@{by}"] = generate(part_copy().kernel, block, part)
    whole = generate(flat, block, Facts(aligned=frozenset(("a0", "a1"))))
    *wide, parted = loads([kernel.launches[0] for kernel in (*made.values(), whole)], Path(triton.__file__).parent)
    assert dict(zip(made, wide, strict=True)) == {name: {WIDTHS[int(name[3:])]} for name in made}
    assert parted == {WIDTHS[8], WIDTHS[1]}  # of whole blocks, and of the last one


def test_random_numbers_of_any_operator_compile_as_one_kernel() -> None:
    """How many operators come before it is a 32-bit argument, what it makes of that takes 64 bits."""
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    kernel = drawn().kernel
    made = generate(kernel, Config.of(variant="pointwise", x=256, warps=2), Facts(aligned=frozenset({"a0", "a1"}), wide=True))
    assert all(cubin.binary for cubin in compiled(made.launches))
    out, seed = torch.zeros(40), torch.tensor([5])
    interpret.run(made, {"a0": seed, "a1": out}, {"n0": 40, "n1": 3})
    offsets = torch.arange(40) + 3 * COUNTERS_PER_OPERATOR
    torch.testing.assert_close(out, philox.uniform(seed, offsets, torch.float32), rtol=0, atol=0)


@pytest.mark.parametrize("length", [1, 7, 63, 64, 65, 200])
def test_whole_blocks_and_the_last_one_are_all_points(length: int) -> None:
    kernel = flat_copy().kernel
    made = generate(kernel, Config.of(variant="pointwise", x=64, warps=1), Facts(aligned=frozenset(("a0", "a1"))))
    x, out = torch.randn(length + 3).bfloat16(), torch.full((length + 3,), 7.0).bfloat16()
    interpret.run(made, {"a0": x, "a1": out}, {"n0": length})
    assert torch.equal(out[:length], x[:length]) and bool((out[length:] == 7).all())


def test_masks_are_spared_where_the_regime_says_how_long_a_row_is_at_least() -> None:
    kernel = half_norm().kernel
    aligned = frozenset(t.name for t in kernel.tensors)
    config, known = Config.of(variant="persistent", x=2, r=512, warps=1), Facts(aligned=aligned, powers=(("n1", 2),))
    made = [generate(kernel, config, facts) for facts in (known, replace(known, least=(("n1", 363),)))]
    assert ["tl.assume(n1 >= 363)" in kernel.launches[0].source for kernel in made] == [False, True]
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    before, after = (cubin.facts.registers for cubin in compiled([kernel.launches[0] for kernel in made]))
    assert after < before


def compiled(launches: Sequence[Launch]) -> list[cubins.Cubin]:
    """Machine code for an H100."""
    try:
        promises = [cubins.request(cubins.Order("vectors", WORKER, job_of(launch, 90), "test")) for launch in launches]
        return [promise.result(250) for promise in promises]
    finally:
        workers.reset()


def loads(launches: Sequence[Launch], triton: Path) -> list[set[str]]:
    """Bits of the loads from global memory in sm_90 code."""
    files = [cubin.source.with_suffix(".cubin") for cubin in compiled(launches)]
    tool = triton / "backends" / "nvidia" / "bin" / "cuobjdump"
    texts = [subprocess.run([tool, "--dump-sass", f], capture_output=True, text=True, check=True).stdout for f in files]
    return [{bits or "32" for bits in LOADS.findall(text)} for text in texts]
