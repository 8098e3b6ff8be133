"""The candidates of a loop kernel on a GPU, or under Triton's interpreter on a CPU."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping

import torch

from polytile.errors import LoweringError
from polytile.kernels.alone import library_of
from polytile.kernels.candidate import Candidate
from polytile.kernels.canonical import LoopKernel
from polytile.kernels.facts import Facts
from polytile.kernels.library import InterpretedLoop
from polytile.kernels.loops import kernel_name
from polytile.kernels.nest import nest_of
from polytile.kernels.triton import variants
from polytile.kernels.triton.candidate import TritonCandidate, Work, start_workers
from polytile.kernels.triton.generate import generate
from polytile.problem import Config, Scalar
from polytile.runtime.cuda import device as devices

INTERPRETED_AS = "H100"
"""The device whose configs the interpreter runs."""

OLDEST = 70
"""Capability from which on Triton generates code."""

OVERLAPPING = 90
"""Capability from which on a kernel may be started before the one ahead of it on the stream has ended."""

FLOAT8_FROM = 89
"""Capability from which on all 8-bit floats are converted."""

_made: dict[tuple[str, torch.device], tuple[Candidate, ...]] = {}


class LoopCandidate(TritonCandidate):
    """One config of a loop."""

    @property
    def traits(self) -> tuple[tuple[str, Scalar], ...]:
        return variants.traits(self.config)


def device_of(target: torch.device) -> devices.DeviceFacts:
    """The facts of the device whose configs are tried: the target's own, or of INTERPRETED_AS where the target is a CPU."""
    return devices.facts(target.index or 0) if target.type == "cuda" else devices.named(INTERPRETED_AS)


def unavailable(target: torch.device) -> str:
    """Why no Triton kernels can be made for tensors on `target`; "" if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (pip install polytile[gpu])"
    if target.type != "cuda":
        return f"polytile launches no kernels on {target.type} yet"
    if not devices.available():
        return "there is no CUDA device in this process"
    found = devices.facts(target.index or 0)
    if not found.arch and found.capability < OLDEST:
        return f"Triton makes no kernels for {found.name}: its capability is {found.capability / 10}, 7.0 is needed"
    return ""


def converts_float8(target: torch.device) -> bool:
    """Whether kernels on `target` convert to and from 8-bit floats: the interpreter's, and those of GPUs that have both types."""
    if target.type != "cuda":
        return target.type == "cpu"
    found = devices.facts(target.index or 0)
    return bool(found.arch) or found.capability >= FLOAT8_FROM


def loop_candidates(kernel: LoopKernel, origins: tuple[str, ...], target: torch.device) -> tuple[Candidate, ...]:
    """Every variant and config in canonical order, the library's operator where the loop is one, then the reference interpreter
    as the last resort, which is alone where there is no Triton form; the same objects for the same work. A CPU as `target`
    means Triton's interpreter, beside which no library is asked."""
    key = (kernel.text, target)
    if key not in _made:
        _made[key] = _candidates(kernel, origins, target)
    return _made[key]


def _candidates(kernel: LoopKernel, origins: tuple[str, ...], target: torch.device) -> tuple[Candidate, ...]:
    on_gpu = target.type == "cuda"
    device = device_of(target)
    index = (target.index or 0) if on_gpu else None
    overlaps = on_gpu and device.capability >= OVERLAPPING
    work = Work(kernel, kernel_name(kernel, origins), device, index, functools.partial(generate, kernel, overlaps=overlaps))
    nest = nest_of(kernel.loop)

    def candidate(config: Config) -> LoopCandidate:
        def valid(size: Mapping[str, int]) -> bool:
            return variants.valid(kernel, nest, config, size)

        def cost(size: Mapping[str, int]) -> float:
            return variants.cost(kernel, nest, config, size, device)

        return LoopCandidate(label(config), config, work, valid, cost)

    last = InterpretedLoop(kernel)
    try:
        found = tuple(candidate(config) for config in variants.configs(kernel, nest, device))
        if found:
            _ = found[0].specialise(Facts()).kernel
    except LoweringError as error:
        last.reason = f"no Triton form: {error}"
        return (last,)
    alone = library_of(kernel, found, recordable=True) if on_gpu and found else ()
    return (*found, *alone, last)


def label(config: Config) -> str:
    """A config as a candidate's name: the variant, then every number with its name."""
    numbers = [f"{name}={value}" for name, value in config.values if name != "variant"]
    return " ".join([str(config.get("variant", "loop")), *numbers])


def prepare() -> None:
    """Starts the processes that compile, and the launcher's own compilation, where there is a use for them."""
    if devices.available() and importlib.util.find_spec("triton") is not None:
        start_workers()


__all__ = ["device_of", "loop_candidates", "prepare", "unavailable"]
