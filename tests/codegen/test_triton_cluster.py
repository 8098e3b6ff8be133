"""Clusters of programs that hold rows or columns together: under the interpreter against float64, their text, and what the
compiler says."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from polytile.candidates import triton_variants as variants
from polytile.candidates.triton import WORKER, job_of
from polytile.codegen.triton import cluster_interpreter, interpret
from polytile.codegen.triton.generate import generate
from polytile.ir import evaluate, expr
from polytile.ir.loop import Loop
from polytile.problem import Config
from polytile.runtime.cuda import cubins, device, workers
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.legality import apply_rewrites, clustered
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import F32, P0, R0, S0, S1, Case, assert_golden, kernel_of, load, loop, op, store
from tests.codegen.interpreted import facts_of
from tests.codegen.test_loops_golden import column_sum, cumsum, layer_norm, softmax
from tests.codegen.test_triton_golden import KNOWN, column_norm

H100 = device.named("H100")
ROWS = Config.of(variant="cluster", x=1, r=16384, warps=16, splits=8)
LONG = Config.of(variant="cluster", x=1, r=8192, warps=4, splits=16)


def columns(**blocks: int) -> Config:
    return Config.of(variant="cluster", warps=8, splits=8, **blocks)


def two_exchanges() -> Loop:
    """Rows over the sum of their squares' distances from the greatest of them, counted up in a total of earlier calls."""
    x = load("x", P0 * (S1 + 3) + R0)
    far = op("sub", x, expr.reduce("max", F32, x))
    total = expr.reduce("sum", F32, op("mul", far, far))
    count = store("c", P0, op("add", load("c", P0), expr.reduce("max", F32, x)))
    return loop([count, store("s", P0, total), store("o", P0 * S1 + R0, op("div", far, total))], {P0: S0}, {R0: S1})


def column_softmax() -> Loop:
    """Exponentials of columns, over their sum."""
    x = load("x", R0 * S0 + P0)
    high = op("exp", op("sub", x, expr.reduce("max", F32, x)))
    return loop([store("o", R0 * S0 + P0, op("div", high, expr.reduce("sum", F32, high)))], {P0: S0}, {R0: S1})


def column_weights() -> Case:
    """Columns of bfloat16 less their means, over their standard deviations, times weights; the means too."""
    x, count = load("x", R0 * S0 + P0), op("cast", expr.index_value(S1), dtype=F32)
    both = expr.reduce("welford", F32, x)
    mean, off = expr.part(both, 0, F32), op("div", expr.part(both, 1, F32), count)
    out = op("mul", op("mul", op("sub", x, mean), op("rsqrt", off)), load("w", P0))
    stores = [store("o", R0 * S0 + P0, out), store("m", P0, op("add", mean, load("m", P0)))]
    return Case(loop(stores, {P0: S0}, {R0: S1}), {"x": torch.bfloat16, "w": F32, "m": F32, "o": torch.bfloat16})


def agrees(kernel: LoopKernel, config: Config, facts: Facts, sizes: dict[str, int]) -> None:
    points = (sizes["n0"] + 3) * (sizes["n1"] + 3)
    given = {t.name: torch.randn(points) if t.role == "in" else torch.full((points,), 7.0) for t in kernel.tensors}
    want = {name: tensor.double() for name, tensor in given.items()}
    evaluate.run_loop(kernel.loop, want, {s: sizes[s.name] for s in kernel.symbols})
    assert not interpret.run(generate(kernel, config, facts), given, sizes)
    for name, tensor in given.items():
        torch.testing.assert_close(tensor.double(), want[name], rtol=1e-4, atol=1e-3)


def test_values_of_a_row_are_loaded_before_one_of_its_programs_stores_over_them() -> None:
    x, total = load("x", P0 * S1 + R0), load("t", P0)
    off = op("sub", x, expr.reduce("sum", F32, x))
    later = op("add", total, expr.reduce("sum", F32, op("mul", off, off)))
    stores = [store("o", P0 * S1 + R0, op("add", off, total)), store("t", P0, later)]
    (launch,) = generate(kernel_of(loop(stores, {P0: S0}, {R0: S1})), ROWS, Facts()).launches
    text = launch.source[launch.source.index("def polytile_kernel") :]
    assert text.index("tl.load(a1 + (p0))") < text.index("pt_cluster_barrier()")


@pytest.mark.parametrize("make", [softmax, layer_norm, two_exchanges, cumsum])
@pytest.mark.parametrize("splits,r", [(2, 64), (4, 32), (16, 16)])
def test_programs_hold_a_row_together(make: Callable[[], Loop], splits: int, r: int) -> None:
    kernel, config = kernel_of(make()), Config.of(variant="cluster", x=1, r=r, warps=4, splits=splits)
    for rows, length, bare in itertools.product((1, 3), (2, 33, 100, 128), (False, True)):
        sizes = {"n0": rows, "n1": length}
        agrees(kernel, config, Facts(wide=True) if bare else facts_of(kernel, sizes), sizes)


@pytest.mark.parametrize("make", [column_norm, column_softmax])
def test_programs_hold_columns_together(make: Callable[[], Loop]) -> None:
    kernel, config = kernel_of(make()), Config.of(variant="cluster", x=16, r=32, warps=4, splits=4, resident=1)
    for columns, length, bare in ((3, 33, False), (48, 128, False), (100, 100, True), (35, 2, True)):
        sizes = {"n0": columns, "n1": length}
        agrees(kernel, config, Facts(wide=True) if bare else facts_of(kernel, sizes), sizes)


def test_columns_of_which_nothing_is_read_have_nothing_to_hold() -> None:
    """Multiples of a row's elements, as positions have them."""
    x = op("mul", op("cast", expr.index_value(R0), dtype=F32), load("w", P0))
    high = op("exp", op("sub", x, expr.reduce("max", F32, x)))
    out = store("o", R0 * S0 + P0, op("div", high, expr.reduce("sum", F32, high)))
    kernel = kernel_of(loop([out], {P0: S0}, {R0: S1}))
    nest = nest_of(kernel.loop)
    assert clustered(nest) and not any(c["variant"] == "cluster" for c in variants.configs(kernel, nest, H100))


def test_elements_of_16_bits_are_held_as_they_are() -> None:
    case, config = column_weights(), Config.of(variant="cluster", x=16, r=32, warps=4, splits=4, resident=1)
    sizes, x, w = {"n0": 40, "n1": 100}, (torch.randn(100, 40) * 2 + 3).bfloat16(), torch.rand(40)
    m, out = torch.ones(40), torch.zeros(100, 40, dtype=torch.bfloat16)
    named = {"x": x, "w": w, "m": m, "o": out}
    made = generate(case.kernel, config, facts_of(case.kernel, sizes))
    assert made.launches[0].source.count("pt_opaque(t") >= 2
    interpret.run(made, {t.name: named[o] for t, o in zip(case.kernel.tensors, case.site.buffers, strict=True)}, sizes)
    wide = x.double()
    want = (wide - wide.mean(0)) / wide.std(0, correction=0) * w
    torch.testing.assert_close(out.double(), want, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(m.double(), wide.mean(0) + 1)


def test_a_length_that_is_known_needs_no_masks() -> None:
    kernel, facts = kernel_of(layer_norm()), Facts(exact=(("n1", 128),))
    config = Config.of(variant="cluster", x=1, r=32, warps=4, splits=4)
    (launch,) = generate(kernel, config, facts).launches
    assert launch.cluster == 4 and "mask=" not in launch.source
    agrees(kernel, config, facts, {"n0": 3, "n1": 128})


def test_rows_with_infinities() -> None:
    kernel, config = kernel_of(softmax()), Config.of(variant="cluster", x=1, r=16, warps=4, splits=4)
    x, inf, nan = torch.randn(6, 50), float("inf"), float("nan")
    x[0], x[1, :20], x[2, 3], x[3, 40], x[4, 7] = -inf, -inf, inf, nan, -inf
    out = torch.full_like(x, 7.0)
    tensors = dict(zip([t.name for t in kernel.tensors], (x, out), strict=True))
    interpret.run(generate(kernel, config, Facts()), tensors, {"n0": 6, "n1": 50})
    torch.testing.assert_close(out, torch.softmax(x, -1), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_where_there_is_something_to_read_once() -> None:
    def able(make: Callable[[], Loop]) -> bool:
        return clustered(apply_rewrites(kernel_of(make()), one_sweep=True)[1])

    assert all(map(able, (softmax, layer_norm, two_exchanges, cumsum, column_norm, column_softmax)))
    assert not able(column_sum)


def test_exponentials_beside_an_infinity_are_0() -> None:
    x = load("x", P0 * S1 + R0)
    powers = op("exp", op("sub", x, expr.reduce("max", F32, x)))
    stores = [store("o", P0 * S1 + R0, powers), store("s", P0, expr.reduce("sum", F32, powers))]
    case = Case(loop(stores, {P0: S0}, {R0: S1}), dict.fromkeys("xos", F32))
    given, out, total = torch.randn(3, 50), torch.full((3, 50), 7.0), torch.full((3,), 7.0)
    given[0, 3], given[1, 40] = float("inf"), float("inf")
    named = {"x": given, "o": out, "s": total}
    config = Config.of(variant="cluster", x=1, r=16, warps=4, splits=4)
    tensors = {t.name: named[o] for t, o in zip(case.kernel.tensors, case.site.buffers, strict=True)}
    interpret.run(generate(case.kernel, config, Facts()), tensors, {"n0": 3, "n1": 50})
    want = torch.exp(given - given.amax(1, keepdim=True))
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(total, want.sum(1), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_device_has_clusters_from_9_0_on() -> None:
    kernel = kernel_of(layer_norm())
    nest = nest_of(kernel.loop)
    for name, has in (("H100", True), ("B200", True), ("A100", False), ("MI300X", False)):
        configs = variants.configs(kernel, nest, device.named(name))
        assert any(c["variant"] == "cluster" for c in configs) is has


@pytest.mark.parametrize("length", [5000, 8192, 20000, 65536, 100000, 131072, 262144])
def test_no_cluster_is_half_idle(length: int) -> None:
    kernel, size = kernel_of(layer_norm()), {"n0": 64, "n1": length}
    nest = nest_of(kernel.loop)
    able = [c for c in variants.configs(kernel, nest, H100) if variants.valid(kernel, nest, c, size)]
    mine = [c for c in able if c["variant"] == "cluster"]
    assert mine and all(length <= c["r"] * c["splits"] < 2 * length for c in mine)
    assert all(variants.cost(kernel, c, size, H100) > 0 for c in mine)


@pytest.mark.parametrize("name,make,config", [
    ("layer_norm_cluster", lambda: kernel_of(layer_norm()), ROWS),
    ("softmax_cluster", lambda: kernel_of(softmax()), ROWS),
    ("cumsum_cluster", lambda: kernel_of(cumsum()), ROWS),
    ("column_weights_cluster", lambda: column_weights().kernel, columns(x=32, r=512, resident=3)),
])  # fmt: skip
def test_generated_text(name: str, make: Callable[[], LoopKernel], config: Config) -> None:
    (launch,) = generate(make(), config, KNOWN, overlaps=True).launches
    head = f"# grid {launch.grid}, clusters of {launch.cluster}, divisible {dict(launch.divisible)}\n"
    assert_golden(f"{name}.triton", head + launch.source[launch.source.index("@triton.jit") :])


@pytest.mark.parametrize("make,config,registers", [
    (lambda: kernel_of(layer_norm()), ROWS, 255), (lambda: kernel_of(softmax()), LONG, 128),
    (lambda: kernel_of(cumsum()), LONG, 128),
    (lambda: column_weights().kernel, columns(x=32, r=512, resident=2), 128),
    (lambda: kernel_of(column_softmax()), columns(x=16, r=512, resident=3), 80),
    (lambda: kernel_of(column_norm()), columns(x=32, r=512, resident=2), 128),
])  # fmt: skip
def test_clusters_compile_for_an_h100_without_spills(make: Callable[[], LoopKernel], config: Config, registers: int) -> None:
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    (launch,) = generate(make(), config, KNOWN).launches
    try:
        found = cubins.request(cubins.Order("cluster", WORKER, job_of(launch, 90), "test")).result(250)
    finally:
        workers.reset()
    assert found.binary and found.facts.spills == 0 and found.facts.registers <= registers


def test_an_error_of_one_program_ends_the_cluster() -> None:
    def fails() -> None:
        cluster_interpreter.interpreted_cluster_barrier()
        raise ValueError("as the test asked")

    from triton.runtime.interpreter import interpreter_builder

    interpreter_builder.set_grid_dim(2, 1, 1)
    with pytest.raises(ValueError, match="as the test asked"):
        cluster_interpreter.run(fails, [(0, 0, 0), (1, 0, 0)], {})
