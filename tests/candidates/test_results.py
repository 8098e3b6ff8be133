"""What the library allocates changes hands, or is copied where others look at the same memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polytile.candidates.library.results import hand_over


@pytest.mark.parametrize("inference", [False, True])
def test_memory_of_its_own_is_replaced(inference: bool) -> None:
    with torch.inference_mode(inference):
        result, out = torch.randn(3, 4), torch.empty(3, 4)
        hand_over(out, result)
    assert out.data_ptr() == result.data_ptr() and torch.equal(out, result)


def shared() -> dict[str, tuple[Tensor, Tensor]]:
    """Tensors, each with another that looks at its memory."""
    views = {
        "a view of all": lambda x: x.view(-1),
        "a part": lambda x: x[1:],
        "another stride": lambda x: x.as_strided((4, 3), (1, 4)),
    }
    return {name: (x := torch.empty(3, 4), view(x)) for name, view in views.items()}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", shared())
def test_memory_that_others_look_at_is_written(kind: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        for out, other in (shared()[kind], shared()[kind][::-1]):
            result, before = torch.randn(out.shape), out.data_ptr()
            hand_over(out, result)
            assert out.data_ptr() == before and torch.equal(out, result)
            assert not other.isnan().any() and set(other.flatten().tolist()) & set(result.flatten().tolist())


def test_part_of_a_memory_another_layout_and_another_type_are_copied() -> None:
    result = torch.randn(3, 4)
    for out in (torch.empty(6, 4)[1:4], torch.empty(4, 3).t(), torch.empty(3, 4, dtype=torch.float64)):
        before = out.data_ptr()
        hand_over(out, result)
        assert out.data_ptr() == before and torch.equal(out.float(), result)
