"""The candidates of an attention on a GPU, or under Triton's interpreter on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from polytile.attention.problem import AttentionProblem
from polytile.attention.schedule import schedule_of
from polytile.attention.triton.configs import label, space, valid
from polytile.attention.triton.schedules import generate
from polytile.candidates.one_architecture import OneArchitecture
from polytile.candidates.triton import Specialised, TritonCandidate, Work
from polytile.codegen.triton.kernel import TritonKernel
from polytile.cost import triton_attention as prior
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config, Scalar
from polytile.runtime.target import Target
from polytile.schedule.facts import Facts

PROBED = (("Hq", 8), ("Hkv", 8), ("D", 64), ("Dv", 64))
"""Heads and their sizes in the text that stands for a candidate's."""


class AttentionCandidate(TritonCandidate):
    """One config. It is right at all sizes for which its blocks hold a head."""

    hard_limits = True
    may_spill = True  # heads of 256 win with some bytes of it

    @property
    def form(self) -> type[Specialised]:
        return OneArchitecture if schedule_of(self.config).specialised else Specialised

    @property
    def traits(self) -> tuple[tuple[str, Scalar], ...]:
        return ("variant", str(self.config["variant"])), ("n", self.config["n"])

    def right_where(self, facts: Facts) -> bool:
        return {"D", "Dv"} <= facts.values.keys() and not schedule_of(self.config).specialised

    @property
    def probes(self) -> tuple[Facts, ...]:
        if schedule_of(self.config).specialised:
            return (replace(super().probes[-1], exact=PROBED),)
        return (Facts(exact=PROBED),)


def attention_candidates(problem: AttentionProblem, name: str, target: torch.device) -> tuple[TritonCandidate, ...]:
    """Every config in canonical order. Raises LoweringError where the problem has no Triton form. A CPU as `target` means
    Triton's interpreter, which runs no specialised warps."""
    device = Target.of(target).facts
    chip = Chip(device.sms, Target.of(target).overlaps)

    def make(config: Config, facts: Facts) -> TritonKernel:
        head = facts.values.get("D")
        scaled = replace(problem, scale=head**-0.5) if problem.scale is None and head else problem
        return generate(scaled, config, facts, chip)

    work = Work(problem, name, device, (target.index or 0) if target.type == "cuda" else None, make)

    def candidate(config: Config) -> AttentionCandidate:
        cost, terms = (partial(each, problem, config, device=device) for each in (prior.cost, prior.terms))
        return AttentionCandidate(label(config), config, work, partial(valid, problem, config), cost, terms)

    configs = space(problem, device)
    runs = [config for config in configs if work.index is not None or not schedule_of(config).specialised]
    generated = tuple(candidate(config) for config in runs)
    _ = generated[0].specialise(Facts(exact=PROBED)).kernel
    return generated
