"""Compiling through the public entry points, and comparing with eager, by the yardstick of float64 where that matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters as dynamo_counters
from torch.utils._pytree import tree_leaves, tree_map

import polytile
from polytile.dispatch.decision import Decision
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.registry import alive
from tests.waiting import PATIENCE

SLACK = 4.0
"""polytile may be this many times as far from float64 as eager is."""

ROUNDINGS = 16
"""And by this many roundings of the result's type farther, as eager may happen to be exact."""


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`function` as one graph with symbolic sizes."""
    return torch.compile(function, backend="polytile", dynamic=True, fullgraph=True, options=options)


def graphs() -> tuple[int, int]:
    """(graphs that polytile compiled, graphs that Dynamo traced) since the test began."""
    return polytile.counters["graphs_compiled"], dynamo_counters["stats"]["unique_graphs"]


def multikernels() -> list[MultiKernel]:
    return alive()


def multikernel(origin: str) -> MultiKernel:
    """The only living MultiKernel that `origin` (part of an operator's name) went into."""
    found = [kernel for kernel in multikernels() if any(origin in operator for operator in kernel.spec.source_ops)]
    assert len(found) == 1, f"{origin}: {[(k.spec.name, k.spec.source_ops) for k in multikernels()]}"
    return found[0]


def names(kernel: MultiKernel) -> list[str]:
    return [candidate.name for candidate in kernel.candidates]


def variants(kernel: MultiKernel) -> set[str]:
    """First words of the candidates' names: "persistent", "looped", ..."""
    return {name.split()[0] for name in names(kernel)}


def decisions() -> list[Decision]:
    """Of all living MultiKernels."""
    return [decision for kernel in multikernels() for decision in kernel.decisions]


def copied(value: Any) -> Any:
    """Tensors of a nest cloned with their strides; everything else as it is."""

    def clone(leaf: Any) -> Any:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    return tree_map(clone, value)


def widened(value: Any) -> Any:
    """Floating-point tensors of a nest in float64, cut off from any graph; everything else as it is."""

    def widen(leaf: Any) -> Any:
        return leaf.detach().double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return tree_map(widen, value)


def tensors(nest: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, Tensor)]


def steps(tensor: Tensor) -> list[int]:
    """The strides that lead to another element."""
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1] if tensor.numel() else []


def distance(got: Tensor, exact: Tensor) -> float:
    """Largest |got - exact| / (|exact| + rms(exact)) over the finite values; the others must be the same."""
    got, exact = got.detach().double(), exact.detach().double()
    finite = exact.isfinite()
    assert torch.equal(got[~finite].nan_to_num(nan=0.5), exact[~finite].nan_to_num(nan=0.5)), "NaN or infinity"
    got, exact = got[finite], exact[finite]
    if not exact.numel():
        return 0.0
    assert bool(got.isfinite().all()), "NaN or infinity where the exact result is finite"
    return float(((got - exact).abs() / (exact.abs() + exact.square().mean().sqrt() + 1e-300)).max())


def assert_as_exact(got: Any, eager: Any, exact: Any, what: object = "", slack: float = SLACK) -> None:
    """`got` has eager's structure, shapes, dtypes and strides, and is about as near to float64 as eager is."""
    mine, theirs, right = tensors(got), tensors(eager), tensors(exact)
    assert len(mine) == len(theirs) == len(right), what
    for position, (g, e, x) in enumerate(zip(mine, theirs, right, strict=True)):
        place = f"{what} result {position}"
        assert (g.shape, g.dtype) == (e.shape, e.dtype), place
        assert steps(g) == steps(e), f"{place}: strides {g.stride()} and not {e.stride()}"
        if not g.is_floating_point():
            assert torch.equal(g, e), place
            continue
        allowed = slack * distance(e, x) + ROUNDINGS * torch.finfo(g.dtype).eps
        off = distance(g, x)
        assert off <= allowed, f"{place} is {off:.2g} from float64; {allowed:.2g} is allowed"


def check(function: Callable[..., Any], run: Callable[..., Any], *args: Any, slack: float = SLACK) -> Any:
    """Calls the compiled `run` and compares with `function` in eager and in float64; returns what `run` returned."""
    eager, exact = function(*copied(args)), function(*widened(args))
    got = run(*args)
    assert_as_exact(got, eager, exact, [tuple(a.shape) if isinstance(a, Tensor) else a for a in args], slack)
    return got


def check_gradients(function: Callable[..., Tensor], run: Callable[..., Tensor], *args: Any) -> None:
    """Result and gradients, for one random cotangent, of the compiled `run` against eager and float64."""
    wide = widened(args)
    for leaf, given in zip(tensors(wide), tensors(args), strict=True):
        leaf.requires_grad_(given.requires_grad)
    eager, mine = copied(args), copied(args)
    results = []
    for call, inputs in ((function, wide), (function, eager), (run, mine)):
        leaves = [leaf for leaf in tensors(inputs) if leaf.requires_grad]
        outputs = call(*inputs)
        cotangent = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1)).to(outputs.dtype)
        results.append((outputs, torch.autograd.grad(outputs, leaves, cotangent)))
    exact, theirs, got = results
    assert_as_exact(got, theirs, exact, [tuple(t.shape) for t in tensors(args)])


def in_process(home: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts tests/behaviour/worker.py, which compiles, runs and reports, on the cache directory `home`."""
    root = Path(__file__).parents[2]
    settings = {"POLYTILE_CACHE_DIR": str(home), "PYTHONPATH": f"{root}:{root / 'src'}", "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.behaviour.worker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, **settings, **environment},
    )


def report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the worker reports, with its stderr under "messages"; it must have ended well."""
    output, messages = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, messages
    return {**json.loads(output.splitlines()[-1]), "messages": messages}


def lines_with(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


def sized(*shapes: Sequence[int], seed: int = 0) -> Iterator[Tensor]:
    """Random normal float32 tensors of these shapes, none of them zero anywhere."""
    generator = torch.Generator().manual_seed(seed)
    for shape in shapes:
        yield torch.randn(tuple(shape), generator=generator)
