"""Upsampling on the CPU: kept whole in the graph, right at every size, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import polytile
from tests.behaviour.helpers import compiled

MODES: dict[str, tuple[int, dict[str, Any]]] = {
    "nearest, twice as large": (2, {"scale_factor": 2.0}),
    "nearest, three times as large": (2, {"scale_factor": 3.0}),
    "nearest, smaller": (2, {"scale_factor": 0.6}),
    "nearest, of one dimension": (1, {"scale_factor": 2.5}),
    "nearest, of three dimensions": (3, {"scale_factor": 2.0}),
    "nearest, from the middle": (2, {"size": (7, 9), "mode": "nearest-exact"}),
    "between two": (1, {"scale_factor": 1.7, "mode": "linear"}),
    "between four": (2, {"scale_factor": 2.0, "mode": "bilinear"}),
    "between four, to a size": (2, {"size": (11, 6), "mode": "bilinear"}),
    "between four, corners aligned": (2, {"size": (11, 1), "mode": "bilinear", "align_corners": True}),
    "between four, smaller": (2, {"scale_factor": 0.6, "mode": "bilinear"}),
    "between four, one way alone": (2, {"scale_factor": (1.0, 1.5), "mode": "bilinear"}),
    "between eight": (3, {"scale_factor": (1.0, 2.0, 1.5), "mode": "trilinear"}),
}
CANDIDATES = ("aten", "plain t1")


@pytest.mark.parametrize("force", CANDIDATES)
@pytest.mark.parametrize("mode", MODES)
def test_results_and_gradients_are_those_of_eager(mode: str, force: str) -> None:
    rank, given = MODES[mode]

    def function(x: Tensor) -> Tensor:
        return F.interpolate(x, **given)

    torch._dynamo.reset()
    call = compiled(function, force=force)
    for extent in (5, 8):
        x = torch.randn(2, 3, *[extent + d for d in range(rank)], requires_grad=True)
        got, want = call(x), function(x)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
        grad = torch.randn_like(want)
        torch.testing.assert_close(torch.autograd.grad(got, x, grad)[0], torch.autograd.grad(want, x, grad)[0])


@pytest.mark.parametrize("given", [{"scale_factor": 2.0}, {"size": (7, 9)}, {"size": (7, 9), "align_corners": True}], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_images_of_bytes_are_resized_to_the_bytes_of_eager(mode: str, given: dict[str, Any]) -> None:
    """Which interpolates them in integers: as torch decomposes it, a fifth of the results is off by 1."""
    if mode == "nearest" and "align_corners" in given:
        pytest.skip("corners are aligned between elements only")

    def function(x: Tensor) -> Tensor:
        return F.interpolate(x, mode=mode, **given)

    torch._dynamo.reset()
    call = compiled(function)
    for shape in ((2, 3, 11, 6), (1, 3, 8, 20)):
        images = torch.randint(0, 256, shape, dtype=torch.uint8)
        for x in (images, images.contiguous(memory_format=torch.channels_last)):
            got, want = call(x), function(x)
            assert torch.equal(got, want) and got.stride() == want.stride()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_and_channels_last(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear")

    call = compiled(function)
    x = torch.randn(2, 8, 6, 7).to(dtype, memory_format=torch.channels_last)
    got, want = call(x), function(x)
    torch.testing.assert_close(got, want, rtol=1e-2 if dtype == torch.bfloat16 else 1e-12, atol=1e-2)
    assert got.stride() == want.stride()


def test_one_operator_is_one_kernel_and_a_library_call_backward() -> None:
    call = compiled(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
    polytile.reset()
    call(torch.randn(2, 3, 6, 7, requires_grad=True)).sum().backward()
    operators = {row.operator: row.how for program in polytile.compiler.programs.compiled_programs() for row in program.operators}
    assert operators["polytile.upsample.default"] == "generated"
    assert operators["polytile.upsample_backward.default"] == "library"
    assert not any("index" in name for name in operators)


def test_what_others_compile_is_left_alone() -> None:
    kept: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.aot_autograd import make_boxed_func

        def look(gm: torch.fx.GraphModule, _: Any) -> Any:
            kept.extend(str(node.target) for node in gm.graph.nodes)
            return make_boxed_func(gm.forward)

        return aot_autograd(fw_compiler=look)(graph, inputs)

    x = torch.randn(2, 3, 6, 7)
    compiled(lambda x: F.interpolate(x, scale_factor=2))(x)
    torch.compile(lambda x: F.interpolate(x, scale_factor=2), backend=backend)(x)
    assert kept and not any("polytile" in name for name in kept)
