"""The text of generated Triton kernels (golden/*.triton: read and found good; POLYTILE_ACCEPT=1 accepts), and what the
compiler makes of it: for an H100 no spills in the configs that the prediction puts first, for an AMD none in these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
import sympy
import torch
from sympy import Expr
from torch.utils._sympy.functions import FloorDiv, Mod

from polytile.candidates import triton_variants as variants
from polytile.candidates.triton import WORKER, job_of
from polytile.codegen.triton.generate import generate
from polytile.codegen.triton.kernel import Launch
from polytile.codegen.triton.launch_text import HEADER
from polytile.ir import expr, ops
from polytile.ir.loop import Loop, Store
from polytile.problem import Config
from polytile.runtime.cuda import cubins, device, workers
from polytile.schedule.facts import Facts
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import (
    BF16,
    F32,
    F64,
    I32,
    I64,
    P0,
    P1,
    R0,
    S0,
    S1,
    Case,
    assert_golden,
    kernel_of,
    load,
    loop,
    op,
    store,
)
from tests.codegen.test_loops_golden import bias_gelu, column_sum, cumsum, embedding_backward, layer_norm, softmax
from tests.codegen.test_loops_ops import takes
from tests.codegen.test_triton_column_reduction import gradients
from tests.codegen.test_triton_segment_sums import by_index

H100 = device.named("H100")


def transpose_add() -> Loop:
    return loop([store("o", P0 * S1 + P1, op("add", load("x", P1 * S0 + P0), load("y", P0 * S1 + P1)))], {P0: S0, P1: S1})


def padded_rows() -> Loop:
    """Sums over rows of memory that are 5 elements apart after every S0."""
    value = load("x", P0 * 4096 + FloorDiv(R0, S0) * (S0 + 5) + Mod(R0, S0))
    return loop([store("o", P0, expr.reduce("sum", F32, value))], {P0: S1}, {R0: 3 * S0 + 1})


def column_norm() -> Loop:
    """Columns less their means."""
    x = load("x", R0 * S0 + P0)
    mean = expr.part(expr.reduce("welford", F32, x), 0, F32)
    return loop([store("o", R0 * S0 + P0, op("sub", x, mean))], {P0: S0}, {R0: S1})


def half_norm() -> Case:
    """Rows of bfloat16 less their means, over their standard deviations, with weights."""
    x, count = load("x", P0 * S1 + R0), op("cast", expr.index_value(S1), dtype=F32)
    off = op("sub", x, op("div", expr.reduce("sum", F32, x), count))
    scale = op("rsqrt", op("div", expr.reduce("sum", F32, op("mul", off, off)), count))
    out = op("add", op("mul", op("mul", off, scale), load("w", R0)), load("b", R0))
    return Case(loop([store("o", P0 * S1 + R0, out)], {P0: S0}, {R0: S1}), dict.fromkeys("xwbo", BF16))


def dropout() -> Loop:
    drawn = op("philox_uniform", load("i", 0, I64), expr.index_value(P0), dtype=F32)
    kept = op("lt", drawn, expr.const(0.9, F32), dtype=torch.bool)
    return loop([store("o", P0, op("where", kept, load("x", P0), expr.const(0.0, F32)))], {P0: S0})


def rows_by_index() -> Loop:
    return by_index(rows=1024)


def config(**values: int | str) -> Config:
    return Config.of(**{"warps": 4, **values})


KNOWN = Facts(frozenset(("n0", "n1")), frozenset(f"a{k}" for k in range(7)))
ROWS_OF_WEIGHTS = ("layer_norm_rows", "layer_norm_rows_of_64")
EXACT = Facts(frozenset(("n0",)), KNOWN.aligned, exact=(("n1", 64),))
GOLDEN: dict[str, tuple[Callable[[], Loop], Config, Facts]] = {
    "softmax_persistent": (softmax, config(variant="persistent", x=1, r=1024), KNOWN),
    "softmax_looped": (softmax, config(variant="looped", x=1, r=2048), KNOWN),
    "softmax_split": (softmax, config(variant="split", r=2048, splits=8), KNOWN),
    "softmax_rows": (softmax, config(variant="persistent", x=8, r=64), Facts(wide=True)),
    "layer_norm_looped": (layer_norm, config(variant="looped", x=1, r=2048), KNOWN),
    "layer_norm_rows": (layer_norm, config(variant="persistent", x=32, r=64, warps=2), KNOWN),
    "layer_norm_rows_of_64": (layer_norm, config(variant="persistent", x=32, r=64, warps=2), EXACT),
    "bias_gelu": (bias_gelu, config(variant="pointwise", x=1024, y=1), KNOWN),
    "column_sum_split": (column_sum, config(variant="split", x=64, r=32, splits=16), KNOWN),
    "column_norm_split": (column_norm, config(variant="split", x=64, r=32, splits=16, stages=3), KNOWN),
    "column_norm_finalise": (column_norm, config(variant="split", x=64, r=32, splits=256, finalise=8), KNOWN),
    "cumsum_looped": (cumsum, config(variant="looped", x=1, r=1024), KNOWN),
    "cumsum_split": (cumsum, config(variant="split", r=1024, splits=8), KNOWN),
    "transpose_add": (transpose_add, config(variant="pointwise", x=64, y=64), KNOWN),
    "embedding_backward": (embedding_backward, config(variant="pointwise", x=256, y=1), KNOWN),
    "rows_first_occurrence": (rows_by_index, config(variant="first_occurrence", x=1024, many=128), KNOWN),
    "rows_owner_computes": (rows_by_index, config(variant="owner_computes", x=1024, many=128), KNOWN),
    "rows_sorted": (rows_by_index, config(variant="sorted", x=1024, y=4, rows=32, many=512, chunks=8), KNOWN),
    "rows_sorted_by_one": (rows_by_index, config(variant="sorted", x=512, y=8, rows=32, many=512, chunks=1), Facts(wide=True)),
    "rows_atomic": (rows_by_index, config(variant="atomic", x=1024, y=1), KNOWN),
    "dropout": (dropout, config(variant="pointwise", x=1024), KNOWN),
    "gradients_column_reduction": (gradients, config(variant="column_reduction", x=2, r=1024, programs=528, stages=3), KNOWN),
    "gradients_parts": (gradients, config(variant="column_reduction", x=1, r=2048, parts=2, programs=132), KNOWN),
    "gradients_clusters": (
        gradients, config(variant="column_reduction", x=1, r=8192, splits=2, programs=132, warps=16, stages=3), KNOWN,
    ),
    "gradients_one_program": (gradients, config(variant="column_reduction", x=32, r=64, programs=1), Facts()),
    "gradients_column_parallel": (gradients, config(variant="column_parallel", x=4, r=256), KNOWN),
    "padded_rows": (padded_rows, config(variant="looped", x=4, r=64), Facts()),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_generated_text(name: str) -> None:
    make, config, facts = GOLDEN[name]
    launches = generate(kernel_of(make()), config, facts).launches
    bodies = [one.source.removeprefix(HEADER).lstrip("\n") for one in launches]
    heads = [f"# grid {one.grid}, divisible {dict(one.divisible)}\n" for one in launches]
    assert_golden(f"{name}.triton", "\n".join(map("".join, zip(heads, bodies, strict=True))))


def test_exponentials_that_are_only_summed_are_fast_ones() -> None:
    value = load("x", P0 * S1 + R0, F32)
    most = expr.reduce("max", F32, value)
    power = op("exp", op("sub", value, most))
    summed = store("s", P0, expr.reduce("sum", F32, power))

    def source(*stores: Store) -> str:
        made = generate(kernel_of(loop([summed, *stores], {P0: S0}, {R0: S1})), config(variant="persistent", x=1, r=1024), KNOWN)
        return made.launches[0].source

    assert "pt_exp(" in source() and "libdevice.exp(" not in source()
    assert "libdevice.exp(" in source(store("o", P0 * S1 + R0, power))


def test_loops_hold_no_division() -> None:
    make, config, facts = GOLDEN["padded_rows"]
    (launch,) = generate(kernel_of(make()), config, facts).launches
    body = launch.source.split("for ", 1)[1].split(":\n", 1)[1]
    inside = [line for line in body.splitlines() if line.startswith(" " * 8)]
    assert inside and not any("//" in line or "%" in line for line in inside)


SHAPES = ((1, 4096), (8192, 64), (4096, 1024), (64, 131072))


def first_choices() -> Iterator[tuple[str, Launch]]:
    """The launches of what the prediction puts first at some sizes, for every loop above."""
    for make in dict.fromkeys(make for make, _, _ in GOLDEN.values()):
        kernel = kernel_of(make())
        nest = nest_of(kernel.loop)
        configs = variants.configs(kernel, nest, H100)
        for shape in SHAPES:
            size = dict(zip((s.name for s in kernel.symbols), shape, strict=False))
            able = [c for c in configs if variants.valid(kernel, nest, c, size)]
            best = min(able, key=lambda c: variants.cost(kernel, c, size, H100))
            for launch in generate(kernel, best, KNOWN).launches:
                yield f"{make.__name__} {best}", launch


def test_first_choices_compile_for_an_h100_without_spills() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    found = resources(first_choices(), H100)
    assert not {name: facts.spills for name, facts in found.items() if facts.spills}
    assert all(facts.registers <= 255 and facts.shared <= H100.shared_per_block for facts in found.values())


def test_a_multiprocessor_holds_two_programs_of_a_long_row() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    (launch,) = generate(half_norm().kernel, config(variant="persistent", x=1, r=16384, warps=16), KNOWN).launches
    (facts,) = resources([("half_norm", launch)], H100).values()
    assert 2 * 16 * 32 * facts.registers <= H100.registers_per_sm and not facts.spills


def test_what_rows_share_is_not_laid_out_anew_for_whole_blocks() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    launches = [(name, *generate(kernel_of(GOLDEN[name][0]()), *GOLDEN[name][1:]).launches) for name in ROWS_OF_WEIGHTS]
    found = resources(launches, H100)
    weights, scales = 64 * F32.itemsize, 32 * F32.itemsize  # of a block of 32 rows
    assert [found[name].shared for name in ROWS_OF_WEIGHTS] == [weights, scales]


def test_the_same_sources_compile_for_amd_without_spills() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    mi300 = device.named("MI300X")
    launches = [(name, one) for name, (make, *how) in GOLDEN.items() for one in generate(kernel_of(make()), *how).launches]
    found = resources([(name, one) for name, one in launches if one.cluster == 1], mi300)  # it has no clusters
    assert len(found) == len(GOLDEN) and not {name: facts.spills for name, facts in found.items() if facts.spills}
    assert all(0 < facts.registers <= 512 and facts.shared <= mi300.shared_per_block for facts in found.values())


def every_operation(dtype: torch.dtype, at: Expr) -> Loop:
    """All operations that take `dtype`, of points or of a single one; each has an output of its own."""
    definitions = [d for d in ops.TABLE if takes(d.name, dtype)]
    args = [load(name, at, dtype) for name in "xyz"]
    results = {d.name: torch.bool if d.result == "bool" else dtype for d in definitions}
    stores = [store(f"o_{d.name}", at, op(d.name, *args[: d.arity], dtype=results[d.name])) for d in definitions]
    return loop(stores, {P0: S0} if at is P0 else {})


@pytest.mark.parametrize("at", [P0, sympy.Integer(0)], ids=["points", "one point"])
def test_every_operation_compiles(at: Expr) -> None:
    """The interpreter is no judge of it: numpy takes a block of one element for a number."""
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    made = {str(dtype): kernel_of(every_operation(dtype, at)) for dtype in (F32, F64, I64, I32, torch.int8, torch.bool)}
    launches = [(name, generate(one, config(variant="pointwise", x=128), Facts()).launches[0]) for name, one in made.items()]
    assert resources(launches, H100).keys() == made.keys()


def resources(launches: Iterable[tuple[str, Launch]], gpu: device.DeviceFacts) -> dict[str, cubins.Facts]:
    """What the compiler says of launches, by name: worker processes compile each for `gpu`."""
    orders = {
        one.identity: (name, cubins.Order(name, WORKER, job_of(one, gpu.target), "test")) for name, one in launches
    }
    try:
        promises = [(name, cubins.request(order)) for name, order in orders.values()]
        return {name: promise.result(250).facts for name, promise in promises}
    finally:
        workers.reset()
