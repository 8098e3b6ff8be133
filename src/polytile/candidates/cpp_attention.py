"""The generated C++ candidates of an attention on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from polytile.attention import cpp
from polytile.attention.cpp.configs import label, space, valid
from polytile.attention.problem import AttentionProblem
from polytile.candidates.cpp import CppCandidate, Prediction
from polytile.codegen.function_names import ENTRY
from polytile.cost import cpp_attention as prior
from polytile.matmul.cpp.machine import Machine
from polytile.problem import Config, Scalar, digest
from polytile.runtime import toolchain

SMALLEST_SHARED = 1 << 15
"""Multiply-adds of a call from which it is tried with several threads."""
FEWEST_LANES = 4
"""The vector length, in floats, on machines without vector registers; compilers split such vectors."""


class CppAttention(CppCandidate):
    """One config on a number of threads. It is right at all sizes."""

    @property
    def traits(self) -> tuple[tuple[str, Scalar], ...]:
        return ("variant", str(self.config["variant"])), ("threads", self.config["threads"])


def attention_candidates(problem: AttentionProblem, name: str, threads: Sequence[int]) -> tuple[CppAttention, ...]:
    """Every config with each number of threads, in canonical order. Raises CompilerMissing."""
    tool = toolchain.find()
    lanes, machine = max(tool.lanes, FEWEST_LANES), Machine.detected()
    made_from = digest(f"{tool.identity} {problem.digest}")

    def candidate(plain: Config, count: int) -> CppAttention:
        config = Config(tuple(sorted([*plain.values, ("threads", count)])))

        def able(size: Mapping[str, int]) -> bool:
            if count == 1 or not valid(plain, size):
                return valid(plain, size)
            return size["B"] * size["Hq"] * size["Mq"] * size["Mkv"] * (size["D"] + size["Dv"]) >= SMALLEST_SHARED

        cost = partial(prior.cost, problem, config, machine=machine)
        terms = partial(prior.terms, problem, config, machine=machine)
        make = partial(cpp.generate, problem, plain, ENTRY, lanes)
        return CppAttention(label(config), config, name, Prediction(able, cost, terms), f"{made_from} {plain}", make)

    return tuple(candidate(plain, count) for count in threads for plain in space(problem, lanes))
