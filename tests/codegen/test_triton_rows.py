"""Rows with what they share, such as weights, several of them in a block: under Triton's interpreter against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from polytile.candidates import triton_variants as variants
from polytile.codegen.triton import interpret
from polytile.codegen.triton.generate import generate
from polytile.ir import expr
from polytile.ir.loop import Loop
from polytile.problem import Config
from polytile.runtime.cuda import device
from polytile.schedule.facts import Facts
from polytile.schedule.nest import nest_of
from tests.codegen import helpers
from tests.codegen.helpers import F32, I64, P0, R0, S0, S1, Case, checked, kernel_of, load, loop, op, store
from tests.codegen.test_loops_golden import column_sum, layer_norm, softmax
from tests.codegen.test_triton_column_reduction import gradients

ALIGNED = frozenset(f"a{k}" for k in range(5))
FACTS = {
    "any": lambda m, n: Facts(wide=True),
    "divisible": lambda m, n: Facts(frozenset({"n1"} if n % 16 == 0 else ()), ALIGNED, powers=(("n1", 2),)),
    "long": lambda m, n: Facts(frozenset(), ALIGNED, powers=(("n1", 2),), least=(("n1", 46),)),
    "exact": lambda m, n: Facts(frozenset(), ALIGNED, exact=(("n1", n),)),
}


@pytest.mark.parametrize("length", [64, 48, 50])
@pytest.mark.parametrize("known", FACTS)
@pytest.mark.parametrize("variant", ["persistent", "looped"])
def test_a_norm_with_weights(variant: str, known: str, length: int) -> None:
    kernel, rows = kernel_of(layer_norm()), 7
    config = Config.of(variant=variant, x=4, r=64 if variant == "persistent" else 32, warps=1)
    x, w, b = torch.randn(rows, length), torch.randn(length), torch.randn(length)
    out, scale = torch.empty(rows, length), torch.empty(rows)
    args = {"x": x, "w": w, "b": b, "o": out, "scale": scale}
    given = dict(zip((t.name for t in kernel.tensors), (args[name] for name in ("x", "w", "b", "o", "scale")), strict=True))
    interpret.run(generate(kernel, config, FACTS[known](rows, length)), given, {"n0": rows, "n1": length})
    torch.testing.assert_close(out, F.layer_norm(x, (length,), w, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", ["looped", "split", "cluster"])
@pytest.mark.parametrize("length", [4096, 2500, 1040])
def test_neighbours_enter_a_softmax_together(variant: str, length: int) -> None:
    """Vectors of 4 floats, in blocks of which each thread has more; rows with infinities too."""
    kernel, shared = kernel_of(softmax()), {} if variant == "looped" else {"splits": 4}
    config = Config.of(variant=variant, x=1, r=1024 if variant == "cluster" else 512, warps=2, **shared)
    x, inf = torch.randn(6, length) * 20, float("inf")
    x[0], x[1, :900], x[2, 3], x[3, 40], x[4, 7] = -inf, -inf, inf, float("nan"), -inf
    out = torch.full_like(x, 7.0)
    given = dict(zip((t.name for t in kernel.tensors), (x, out), strict=True))
    made = generate(kernel, config, Facts(frozenset({"n1"} if length % 16 == 0 else ()), ALIGNED, powers=(("n1", 4),)))
    assert ("pt_online_run" in made.launches[0].source) is (variant != "cluster")
    interpret.run(made, given, {"n0": 6, "n1": length})
    torch.testing.assert_close(out, torch.softmax(x.double(), -1).float(), rtol=2e-5, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("variant", ["persistent", "looped", "split", "cluster"])
def test_the_largest_of_nothing_but_minus_infinity(variant: str) -> None:
    """As in attention, where rows that see no key are 0."""
    x = load("x", P0 * S1 + R0)
    most = expr.reduce("max", F32, x)
    power = op("exp", op("sub", x, most))
    empty = expr.op("eq", torch.bool, most, expr.const(-float("inf"), F32))
    share = op("where", empty, expr.const(0.0, F32), op("div", power, expr.reduce("sum", F32, power)))
    kernel = kernel_of(loop([store("o", P0 * S1 + R0, share)], {P0: S0}, {R0: S1}))
    shared = {"splits": 4} if variant in ("split", "cluster") else {}
    config = Config.of(variant=variant, x=1, r={"persistent": 4096, "cluster": 1024}.get(variant, 512), warps=2, **shared)
    given = torch.randn(3, 2500)
    given[0], given[1, :1000] = -float("inf"), -float("inf")
    out = torch.full_like(given, 7.0)
    args = dict(zip((t.name for t in kernel.tensors), (given, out), strict=True))
    interpret.run(generate(kernel, config, Facts()), args, {"n0": 3, "n1": 2500})
    torch.testing.assert_close(out, torch.softmax(given, -1).nan_to_num(0.0), rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize("known,run", [
    (Facts(), 1), (Facts(aligned=ALIGNED), 1), (Facts(aligned=ALIGNED, powers=(("n1", 2),)), 2),
])  # fmt: skip
def test_only_what_one_load_brings(known: Facts, run: int) -> None:
    made = generate(kernel_of(softmax()), Config.of(variant="looped", x=1, r=512, warps=2), known)
    assert (f"[R // {run}, {run}]" in made.launches[0].source) is (run > 1)


def test_not_of_several_rows() -> None:
    known, kernel = Facts(aligned=ALIGNED, powers=(("n1", 4),)), kernel_of(softmax())
    for x, r in ((512, 1), (256, 2)):
        (launch,) = generate(kernel, Config.of(variant="looped", x=x, r=r, warps=2), known).launches
        assert "pt_online_run" not in launch.source


@pytest.mark.parametrize("generator", ["triton"], indirect=True)
def test_rows_store_what_they_pick(generator: str) -> None:
    """As a cross entropy does: the sum of a row's exponentials, and the row's element at an index from memory."""
    x = load("x", P0 * S1 + R0)
    most = expr.reduce("max", F32, x)
    total = expr.reduce("sum", F32, op("exp", op("sub", x, most)))
    picked = expr.load(F32, "x", P0 * S1 + expr.indirect_symbol(0), (checked("i", P0, S1),))
    case = Case(loop([store("o", P0, op("sub", op("add", op("log", total), most), picked))], {P0: S0}, {R0: S1}),
                {"x": F32, "i": I64, "o": F32})  # fmt: skip
    for length in (5, 64, 100) * 5:
        size = {S0: 7, S1: length}
        tensors = {"x": helpers.random(7 * length), "i": torch.randint(-length, length, (7,)), "o": helpers.random(7)}
        case.check(tensors, size, relative={F32: 1e-4}, absolute=1e-5)
    case.check_raises({**tensors, "i": torch.full((7,), length)}, size)


def sum_and_norm() -> Loop:
    """A residual sum, which is stored, and its norm."""
    total = op("add", load("a", P0 * S1 + R0), load("b", P0 * S1 + R0))
    scale = op("rsqrt", expr.reduce("sum", F32, op("mul", total, total)))
    stores = [store("s", P0 * S1 + R0, total), store("o", P0 * S1 + R0, op("mul", total, scale))]
    return loop(stores, {P0: S0}, {R0: S1})


@pytest.mark.parametrize("x", [1, 8])
@pytest.mark.parametrize("known", [Facts(wide=True), Facts(frozenset({"n1"}), ALIGNED)], ids=["any", "divisible"])
def test_a_stored_sum_is_loaded_again(known: Facts, x: int) -> None:
    """The first pass stores the sum of two rows; the second loads it, in place of both, also in blocks of several rows."""
    kernel, (rows, length) = kernel_of(sum_and_norm()), (11, 320)
    made = generate(kernel, Config.of(variant="looped", x=x, r=128, warps=4), known)
    a, b, s, o = *torch.randn(2, rows, length), *torch.full((2, rows, length), 7.0)
    given = dict(zip((t.name for t in kernel.tensors), (a, b, s, o), strict=True))
    interpret.run(made, given, {"n0": rows, "n1": length})
    again = next(tensor.name for tensor in kernel.tensors if given[tensor.name] is s)
    assert f"tl.load({again} + " in made.launches[0].source
    torch.testing.assert_close(s, a + b)
    torch.testing.assert_close(o, (a + b) * (a + b).double().square().sum(-1, keepdim=True).rsqrt().float())


@pytest.mark.parametrize("make", [sum_and_norm, layer_norm, softmax, gradients, column_sum], ids=lambda make: make.__name__)
def test_every_config_that_is_tried_can_be_written_down(make: Callable[[], Loop]) -> None:
    kernel, sizes = kernel_of(make()), {"n0": 4096, "n1": 1024}
    nest = nest_of(kernel.loop)
    tried = [c for c in variants.configs(kernel, nest, device.named("H100")) if variants.valid(kernel, nest, c, sizes)]
    assert len(tried) > 10
    for config in tried:
        assert generate(kernel, config, Facts(frozenset({"n1"}), ALIGNED)).launches
