"""One rank of a job of two processes: runs a case, compares it with eager, and reports as JSON.

    python -m tests.behaviour.rank CASE RANK RENDEZVOUS_FILE [cuda]

Every case gives the function or module to compile, what eager runs in its place, and the inputs of this rank's calls.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._dynamo.utils import counters as dynamo_counters
from torch.distributed import _functional_collectives as collectives

import polytile
from polytile.dispatch.registry import alive

RANKS = 2
SIZES = (6, 4, 10, 33)
WIDTH = 16

device = torch.device("cpu")
"""Of this rank: the CPU, or a GPU of its own."""

Case = Callable[[int], Iterator[tuple[Any, Any]]]


def inputs(rank: int, *, same: bool = False) -> Iterator[Tensor]:
    """Rows of every size; each rank has its own, or all have the `same`."""
    for rows in SIZES:
        generator = torch.Generator().manual_seed(rows if same else 100 * rows + rank)
        yield torch.randn(rows, WIDTH, generator=generator).to(device)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(nn.functional.gelu(self.first(torch.softmax(x, -1))))


class Blocks(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def model(count: int = 2) -> Blocks:
    torch.manual_seed(0)
    return Blocks(count).to(device)


kept: list[Any] = []
"""What was compiled: its kernels are asked for their decisions at the end."""


def compiled(function: Any, **options: Any) -> Any:
    kept.append(polytile.compile(function, options={"stall": "tune", "agree": "ranks", **options}))
    return kept[-1]


def functional(rank: int) -> Iterator[tuple[Any, Any]]:
    """Two collectives and work beside them in one graph."""

    def function(x: Tensor) -> Tensor:
        total = collectives.all_reduce(torch.softmax(x, -1), "sum", distributed.group.WORLD)
        both = collectives.all_gather_tensor(x * 2, 0, distributed.group.WORLD)
        return torch.cumsum(total, -1) + both[: x.shape[0]].sin() + x.exp().sum(-1, keepdim=True)

    run = compiled(function)
    for x in inputs(rank):
        yield run(x), function(x)


def trained(module: nn.Module, rank: int, *, same: bool = False) -> list[Tensor]:
    """Outputs and gradients of steps at all sizes, and the parameters after them."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    found = []
    for x in 3 * list(inputs(rank, same=same)):  # so often that programs become C
        out = module(x)
        out.square().mean().backward()
        found += [out.detach(), *(_whole(p.grad).clone() for p in module.parameters() if p.grad is not None)]
        optimizer.step()
        optimizer.zero_grad()
    return [*found, *(_whole(p).detach().clone() for p in module.parameters())]


def _whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def pairs(mine: list[Tensor], eager: list[Tensor]) -> Iterator[tuple[Any, Any]]:
    yield from zip(mine, eager, strict=True)


def ddp(rank: int) -> Iterator[tuple[Any, Any]]:
    wrapped = [nn.parallel.DistributedDataParallel(model()) for _ in range(2)]
    yield from pairs(trained(compiled(wrapped[0]), rank), trained(wrapped[1], rank))


def fsdp2(rank: int) -> Iterator[tuple[Any, Any]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (RANKS,))
    modules = [model() for _ in range(2)]
    for module in modules:
        for block in module.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh)
    yield from pairs(trained(compiled(modules[0]), rank), trained(modules[1], rank))


def tensor_parallel(rank: int) -> Iterator[tuple[Any, Any]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    whole, mesh = model(1), init_device_mesh(device.type, (RANKS,))
    styles = {"blocks.0.first": ColwiseParallel(), "blocks.0.second": RowwiseParallel()}
    split = parallelize_module(copy.deepcopy(whole), mesh, styles)
    yield from pairs(trained(compiled(split), rank, same=True), trained(whole, rank, same=True))


CASES: dict[str, Case] = {case.__name__: case for case in (functional, ddp, fsdp2, tensor_parallel)}


def report(case: Case, rank: int) -> dict[str, Any]:
    worst = 0.0
    for got, expected in case(rank):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        worst = max(worst, float((got - expected).abs().max()))
    decisions = {f"{d.kernel} {d.regime}": d.candidate for kernel in alive() for d in kernel.decisions}
    return {
        "decisions": decisions,
        "measured": polytile.counters["candidates_benchmarked"],
        "graphs": dynamo_counters["stats"]["unique_graphs"],
        "worst": worst,
    }


def main() -> None:
    global device
    name, rank, rendezvous, *kind = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
    if kind == ["cuda"]:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    limit = timedelta(seconds=120)
    library = "nccl" if kind else "gloo"
    distributed.init_process_group(library, init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS, timeout=limit)
    found = report(CASES[name], rank)
    distributed.barrier()
    distributed.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
