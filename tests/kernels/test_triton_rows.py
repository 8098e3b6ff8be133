"""Rows with what they share, such as weights, several of them in a block: under Triton's interpreter against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from polytile.kernels.facts import Facts
from polytile.kernels.triton import interpret
from polytile.kernels.triton.generate import generate
from polytile.problem import Config
from tests.kernels.helpers import kernel_of
from tests.kernels.test_loops_golden import layer_norm

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
