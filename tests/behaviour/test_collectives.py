"""Programs on several processes, of which the test is one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed import _functional_collectives as collectives
from torch.utils._pytree import tree_map

from polytile import counters
from tests.behaviour.helpers import compiled, sized

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed package")

COLLECTIVES: dict[str, Callable[[Tensor], Any]] = {
    "gathered after": lambda x: (s := collectives.reduce_scatter_tensor(x * 2, "sum", 0, distributed.group.WORLD),
                                 collectives.all_gather_tensor(s * 2, 0, distributed.group.WORLD) + 1),
    "reduced meanwhile": lambda x: (collectives.all_reduce(x * 2, "sum", distributed.group.WORLD), (x * 3).cumsum(0)),
    "reduced twice": lambda x: collectives.all_reduce(
        collectives.all_reduce(x + 1, "sum", distributed.group.WORLD) * 2, "sum", distributed.group.WORLD).sin(),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_a_collective_works_on_is_left_alone(name: str) -> None:
    """Waiting for one gives its own result, not a copy of it."""
    function = COLLECTIVES[name]
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        run = compiled(function, tune="off")
        for shape in ((4, 8), (30, 5)):
            (x,) = sized(shape)
            torch.testing.assert_close(tree_map(torch.clone, run(x)), tree_map(torch.clone, function(x)))
    finally:
        distributed.destroy_process_group()


class Halves(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))) + x


def test_layers_that_dtensor_splits_are_compiled_and_go_on_in_c() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        whole = Halves()
        split = parallelize_module(
            copy.deepcopy(whole), init_device_mesh("cpu", (1,)), {"first": ColwiseParallel(), "second": RowwiseParallel()}
        )
        run = compiled(split, tune="off")
        for rows in 4 * (3, 5, 9):
            (x,) = sized((rows, 8))
            out = run(x)
            torch.testing.assert_close(out, whole(x))
            out.sum().backward()
        assert counters["graphs_compiled"] == 2, "forward and backward"
    finally:
        distributed.destroy_process_group()
