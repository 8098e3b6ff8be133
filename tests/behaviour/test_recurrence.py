"""A recurrence that is written out: its steps differ in where they read and write, and share their kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polytile
from polytile.compiler.backend import compile as compiled
from polytile.compiler.programs import compiled_programs

STEPS = 12


class Recurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        found = []
        for t in range(STEPS):
            h = torch.tanh(self.cell(torch.cat((x[t], h), 1)))
            found.append(h)
        return torch.stack(found)


@pytest.mark.parametrize("interpret", [False, True], ids=["C++", "Triton"])
def test_the_steps_of_a_recurrence_share_their_kernels(interpret: bool) -> None:
    """One for the first step, which begins where its tensors do, one for all others, one for the last, which nothing reads."""
    torch.manual_seed(0)
    network = Recurrence()
    polytile.reset()
    function = compiled(network, options={"interpret": interpret, "tune": "off"})
    for batch in (3, 16) if not interpret else (3,):
        x, h = torch.randn(STEPS, batch, 8), torch.randn(batch, 4)
        with torch.no_grad():
            result = function(x, h)
            expected = network.double()(x.double(), h.double())
            network.float()
        torch.testing.assert_close(result, expected.float(), rtol=1e-5, atol=1e-6)
    (program,) = compiled_programs()
    assert len(program.calls) >= STEPS
    assert len(program.multikernels) <= 5
