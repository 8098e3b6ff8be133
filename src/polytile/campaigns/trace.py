"""Turns a spec's models and kernels into units of work: models are compiled once, and the kernels and sizes of their hints are
recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from polytile import options
from polytile.campaigns.board import Unit
from polytile.campaigns.spec import SEARCHES, KernelCalls, Model, Spec
from polytile.campaigns.worker import Resolve, fingerprint
from polytile.compiler import backend
from polytile.compiler.programs import Wanted, noting_hints
from polytile.dispatch import recorded
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import CampaignError
from polytile.ir.serialise import Unstorable
from polytile.runtime import device, pytorch, sizes_file
from polytile.tuning.environment import environment

Tell = Callable[[str], None]


@dataclass
class Traced:
    """What a campaign measures: its units, the wanted sizes of each kernel that a model needs, and the calls of functions that
    are called directly.

    `inner` are kernels that chosen candidates run, such as an epilogue after the library's product. They are not units, but their
    choices are part of the result.
    """

    units: dict[str, Unit] = field(default_factory=dict)
    kernels: dict[MultiKernel, dict[str, dict[str, int]]] = field(default_factory=dict)
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = field(default_factory=dict)
    inner: dict[MultiKernel, None] = field(default_factory=dict)

    def add(self, unit: Unit) -> None:
        known = self.units.get(unit.id)
        self.units[unit.id] = replace(unit, weight=unit.weight + known.weight) if known else unit


def tracing(store: str, search: str) -> AbstractContextManager[None]:
    """Options for tracing models and making choices: nothing is measured, and candidates are those of the workers."""
    own = {"store": store, "persist": True, "stall": "compile", "tune": "off", "race_eager": False}
    return options.override(**{**SEARCHES[search], **own})


def trace(spec: Spec, resolve: Resolve, tell: Tell) -> Traced:
    """The units of a spec. Raises what its functions raise, and CampaignError if there is nothing to measure."""
    traced = Traced()
    for model in spec.models:
        tell(f"tracing {Path(model.target).name}")
        _trace_model(model, spec, resolve, traced)
    for kernel in spec.kernels:
        _trace_calls(kernel, spec, resolve, traced)
    if not traced.units:
        raise CampaignError("nothing in the spec has a choice of kernels at the sizes that it names.")
    return traced


def _trace_model(model: Model, spec: Spec, resolve: Resolve, traced: Traced) -> None:
    function, calls = resolve({"target": model.target, "shapes": model.shapes[:1], "dtype": model.dtype}, spec.device)
    torch._dynamo.reset()  # with other hints the same function is another model
    with noting_hints() as wanted:
        compiled = backend.compile(function, hints=model.hints)
        with torch.set_grad_enabled(model.training):
            results = compiled(*(_with_gradient(arg) if model.training else arg for arg in calls[0]))
            if model.training:
                _differentiable(results, model).sum().backward()
    weights = _weights(model)
    for each in wanted:
        unit = _unit(each, spec, weights.get(each.hint, 1.0))
        if unit is not None:
            traced.add(unit)
            traced.kernels.setdefault(each.kernel, {})[unit.id] = dict(each.sizes)


def _with_gradient(arg: Any) -> Any:
    return arg.detach().requires_grad_() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg


def _differentiable(results: Any, model: Model) -> torch.Tensor:
    for leaf in tree_leaves(results):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            return leaf
    raise CampaignError(f"{model.target} returns nothing that has a gradient; leave out training = true.")


def _weights(model: Model) -> dict[tuple[int, ...], float]:
    """How many calls each combination of sizes had, if known."""
    if not isinstance(model.hints, Path):
        return {}
    return {sizes: calls for seen in sizes_file.read(model.hints).values() for sizes, calls in seen.frequent()}


def _unit(wanted: Wanted, spec: Spec, weight: float) -> Unit | None:
    """The unit of a kernel at some sizes; None if there is nothing to choose."""
    kernel, work = wanted.kernel, recorded.work_of(wanted.kernel)
    if work is None or len(kernel.candidates) < 2:
        return None
    try:
        document = work.document()
    except Unstorable as error:
        raise CampaignError(f"the kernel {kernel.spec.name} cannot be described to a worker: {error}.") from None
    target = kernel.spec.target
    return Unit(
        kernel.spec.name, document, dict(wanted.sizes), SEARCHES[spec.search], target.type,
        kernel.spec.device or device.fingerprint(), environment(target), pytorch.torch_threads(), spec.unit_seconds, weight,
        len(kernel.candidates),
    )  # fmt: skip


def _trace_calls(kernel: KernelCalls, spec: Spec, resolve: Resolve, traced: Traced) -> None:
    about = {"target": kernel.target, "shapes": list(kernel.shapes), "dtype": kernel.dtype}
    function, calls = resolve(about, spec.device)
    name = kernel.target.rpartition(":")[2]
    for index, args in enumerate(calls):
        unit = Unit(
            f"{name} {_shapes(args)}", {**about, "index": index}, {}, SEARCHES[spec.search], spec.device,
            fingerprint(spec.device), environment(torch.device(spec.device)), pytorch.torch_threads(), spec.unit_seconds,
        )  # fmt: skip
        traced.add(unit)
        traced.calls[unit.id] = function, args


def _shapes(args: Sequence[Any]) -> str:
    return ",".join("x".join(map(str, arg.shape)) for arg in args if isinstance(arg, torch.Tensor))
