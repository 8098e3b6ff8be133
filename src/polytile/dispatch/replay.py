"""The selector on a matrix of measurements: what it would choose, what it would measure for that, and what that costs.

The selector's own chain answers, with a store that is empty at first and fills as it measures; a Device of tuning/replay.py
takes the place of the real one. As in a MultiKernel, what was decided for a regime serves all its sizes, unless the regime is
subdivided.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polytile import options
from polytile.dispatch import selector
from polytile.dispatch.request import Request
from polytile.dispatch.spec import KernelSpec
from polytile.dispatch.tree import DecisionTree
from polytile.facts import Fact
from polytile.ir.buffer import CPU as CPU_DEVICE
from polytile.problem import Problem
from polytile.runtime import regime
from polytile.runtime.device import kind_of
from polytile.store import Store
from polytile.tuning.replay import Device, Matrix, Recorded, Report, evaluate

TARGETS = {"cuda": torch.device("cuda")}
"""By the kind of the device on which a matrix was recorded; any other counts as a processor."""

SHARED = "decided for its regime"
"""Grounds of a choice that was made at an earlier size of the same regime."""


def replay(
    matrix: Matrix, problems: Sequence[Problem] = (), store: Store | None = None, device: Device | None = None
) -> Report:
    """The selector's choices on the problems in this order, as the options in force have them (plans aside).

    `store` is what the program knows beforehand: nothing, if it is not given. `device` answers for the matrix in place of one
    that repeats its times. Grounds are the names of the links.
    """
    device = device if device is not None else Device(matrix)
    known = store if store is not None else Store(None)
    decided: dict[tuple[KernelSpec, tuple[Fact, ...]], DecisionTree] = {}

    def choose(problem: Problem, candidates: Sequence[Recorded]) -> tuple[str, str]:
        spec = spec_of(problem)
        tree = decided.setdefault((spec, problem.layouts), DecisionTree(spec.keys))
        ints = tuple(size for _, size in problem.sizes)
        node = tree.leaf(spec.keys.fields(ints), dict(problem.sizes))
        if node.decision is not None:
            return node.decision.candidate, SHARED
        request = Request(
            spec, problem, tuple(candidates), dict(problem.sizes), ints, node.fields, (), matrix.environment, known,
            tuner=device.tune,
        )  # fmt: skip
        decision = selector.choose(request)
        assert decision is not None, "a problem of a matrix has a candidate that runs"
        tree.decide(node.fields, decision, candidates, dict(problem.sizes))
        return decision.candidate, decision.link

    with options.override(plan="", metrics=""):
        return evaluate(matrix, choose, problems, device)


def spec_of(problem: Problem) -> KernelSpec:
    """A spec that asks what the problem's own asked: all that a store keeps of it. Every size counts by its bucket, as
    nearly all do; a size of which each value mattered would be served by neighbours here and is not in a program."""
    names = tuple(name for name, _ in problem.sizes)
    return KernelSpec(
        f"{problem.family}_{problem.kernel[:8]}", problem.family, problem.kernel, (), names,
        (regime.BUCKET,) * len(names), device=problem.device, target=TARGETS.get(kind_of(problem.device), CPU_DEVICE),
    )  # fmt: skip
