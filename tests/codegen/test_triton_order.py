"""In which order a generated Triton kernel does things: waiting for the kernel before it, loads, passes there and back."""

from __future__ import annotations

import pytest
import torch

from polytile.candidates.triton import WORKER, job_of
from polytile.codegen.triton import interpret, unit
from polytile.codegen.triton.generate import generate
from polytile.problem import Config
from polytile.runtime.cuda import cubins, workers
from polytile.schedule.facts import Facts
from tests.codegen.helpers import P0, S0, kernel_of, load, loop, op, store
from tests.codegen.test_loops_golden import layer_norm
from tests.codegen.test_triton_golden import GOLDEN, KNOWN

TOUCHES = ("tl.load(", "tl.store(", "tl.atomic")


@pytest.mark.parametrize("name", GOLDEN)
def test_a_kernel_that_overlaps_waits_before_it_touches_memory(name: str) -> None:
    make, config, facts = GOLDEN[name]
    for launch in generate(kernel_of(make()), config, facts, overlaps=True).launches:
        lines = launch.source[launch.source.index("def polytile_kernel") :].splitlines()
        waits = lines.index("    gdc_wait()")
        assert launch.overlaps and lines[waits + 1] == "    gdc_launch_dependents()"
        assert not any(touch in line for line in lines[:waits] for touch in TOUCHES)
    for launch in generate(kernel_of(make()), config, facts).launches:
        assert not launch.overlaps and "gdc" not in launch.source


def test_waiting_is_an_instruction_of_an_h100() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    make, config, facts = GOLDEN["softmax_split"]
    launches = generate(kernel_of(make()), config, facts, overlaps=True).launches
    try:
        promises = [cubins.request(cubins.Order("softmax", WORKER, job_of(launch, 90), "test")) for launch in launches]
        found = [promise.result(250) for promise in promises]
    finally:
        workers.reset()
    assert all(len(cubin.binary) > 0 and cubin.facts.spills == 0 for cubin in found)


def test_loads_stand_ahead_of_arithmetic() -> None:
    body = loop([store("o", P0, op("mul", op("erf", load("x", P0)), load("y", P0)))], {P0: S0})
    (launch,) = generate(kernel_of(body), Config.of(variant="pointwise", x=512, warps=4), KNOWN).launches
    lines = launch.source[launch.source.index("def polytile_kernel") :].splitlines()
    loads = [number for number, line in enumerate(lines) if "tl.load(" in line]
    assert len(loads) == 2 and loads[1] == loads[0] + 1 and "erf" not in "".join(lines[: loads[1]])


def test_loads_ahead_fill_few_registers() -> None:
    """What one thread would hold of 64 inputs is more than it has registers; the first ones alone go ahead."""
    total = load("x0", P0)
    for number in range(1, 64):
        total = op("add", total, load(f"x{number}", P0))
    kernel = kernel_of(loop([store("o", P0, total)], {P0: S0}))
    (launch,) = generate(kernel, Config.of(variant="pointwise", x=1024, warps=4), KNOWN).launches
    lines = launch.source[launch.source.index("def polytile_kernel") :].splitlines()
    first = next(number for number, line in enumerate(lines) if "= t" in line and " + t" in line and "tl.load" not in line)
    assert sum("tl.load(" in line for line in lines[:first]) == 6


@pytest.mark.parametrize("variant", ["looped", "split"])
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("length", [1, 64, 100, 1000])
def test_passes_there_and_back_see_every_point(variant: str, stages: int, length: int) -> None:
    kernel = kernel_of(layer_norm())
    more = {"splits": 4} if variant == "split" else {}
    config = Config.of(variant=variant, r=64, warps=1, **({"stages": stages} if stages > 1 else {}), **more)
    made = generate(kernel, config, Facts())
    assert any("_blocks - 1 -" in launch.source for launch in made.launches)
    x, w, b = 100 + torch.randn(3, length), torch.randn(length), torch.randn(length)
    out, scale = torch.full((3, length), 77.0), torch.full((3,), 77.0)
    tensors = dict(zip([t.name for t in kernel.tensors], (x, w, b, out, scale), strict=True))
    assert interpret.run(made, tensors, dict(zip([s.name for s in kernel.symbols], (3, length), strict=True))) == 0
    wide = x.double()
    want = torch.nn.functional.layer_norm(wide, (length,), w.double(), b.double())
    torch.testing.assert_close(out.double(), want, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(scale.double(), (wide.var(-1, correction=0) + 1e-5).rsqrt(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_rows_of_blocks_may_need_two_axes_of_the_grid(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit, "ROWS", 2)
    kernel = kernel_of(GOLDEN["transpose_add"][0]())
    made = generate(kernel, Config.of(variant="pointwise", x=16, y=16, warps=1), KNOWN)
    x, y, out = torch.randn(32, 16 * rows), torch.randn(16 * rows, 32), torch.full((16 * rows, 32), 77.0)
    tensors = dict(zip([t.name for t in kernel.tensors], (x, y, out), strict=True))
    interpret.run(made, tensors, dict(zip([s.name for s in kernel.symbols], (16 * rows, 32), strict=True)))
    assert torch.equal(out, x.t() + y)
