"""The candidates of a loop kernel on a GPU, or under Triton's interpreter on a CPU."""

from __future__ import annotations

import importlib.util
from functools import partial

import torch

from polytile.candidates import triton_variants as variants
from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp_loops import kernel_name
from polytile.candidates.interpreted_loop import InterpretedLoop
from polytile.candidates.library.loops import Speed, library_of
from polytile.candidates.triton import TritonCandidate, Work, start_workers
from polytile.codegen.triton.generate import generate
from polytile.errors import LoweringError
from polytile.problem import Config, Scalar
from polytile.runtime.cuda import device as devices
from polytile.runtime.target import Target
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.nest import nest_of

_made: dict[tuple[str, torch.device], tuple[Candidate, ...]] = {}


class LoopCandidate(TritonCandidate):
    """One config of a loop."""

    @property
    def traits(self) -> tuple[tuple[str, Scalar], ...]:
        return variants.traits(self.config)


def loop_candidates(kernel: LoopKernel, origins: tuple[str, ...], target: torch.device) -> tuple[Candidate, ...]:
    """Every variant and config in canonical order, then the ATen calls that the loop came from, then the reference interpreter
    as the last resort, which is the only one if there is no Triton form. Equal work gets the same objects. A CPU as `target`
    means Triton's interpreter; then no library is asked."""
    key = (kernel.text, target)
    if key not in _made:
        _made[key] = _candidates(kernel, origins, target)
    return _made[key]


def _candidates(kernel: LoopKernel, origins: tuple[str, ...], target: torch.device) -> tuple[Candidate, ...]:
    on_gpu = target.type == "cuda"
    device = Target.of(target).facts
    index = (target.index or 0) if on_gpu else None
    overlaps = Target.of(target).overlaps
    make, plain = partial(generate, kernel, overlaps=overlaps), partial(generate, kernel)
    work = Work(kernel, kernel_name(kernel, origins), device, index, make, plain)
    nest = nest_of(kernel.loop)

    def candidate(config: Config) -> LoopCandidate:
        cost, terms = (partial(each, kernel, config, device=device) for each in (variants.cost, variants.terms))
        return LoopCandidate(label(config), config, work, partial(variants.valid, kernel, nest, config), cost, terms)

    last = InterpretedLoop(kernel)
    try:
        generated = tuple(candidate(config) for config in variants.configs(kernel, nest, device))
        if generated:
            _ = generated[0].specialise(Facts()).kernel
    except LoweringError as error:
        last.reason = f"no Triton form: {error}"
        return (last,)
    calls = library_of(kernel, generated, library_speed(device), recordable=True) if on_gpu and generated else ()
    return (*generated, *calls, last)


def library_speed(device: devices.DeviceFacts) -> Speed:
    """Predicted time of ATen's operators on a device, from the time of the kernels that they launch."""

    def bandwidth(moved: float) -> float:
        return device.l2_bandwidth if moved <= device.l2_bytes / 2 else device.bandwidth

    return Speed(device.launch_seconds, bandwidth)


def label(config: Config) -> str:
    """A config as a candidate's name: the variant, then every number with its name."""
    numbers = [f"{name}={value}" for name, value in config.values if name != "variant"]
    return " ".join([str(config.get("variant", "loop")), *numbers])


def prepare() -> None:
    """Starts the processes that compile, and the launcher's own compilation, where there is a use for them."""
    if devices.available() and importlib.util.find_spec("triton") is not None:
        start_workers()
