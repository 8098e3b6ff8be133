"""Generated C++ products: a candidate for each config of this processor's instruction set and each number of threads."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from polytile.candidates import cpp_matmul as matmul
from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp import CppCandidate, Prediction
from polytile.candidates.cpp_matmul import MatmulCandidate
from polytile.candidates.product_terms import work_terms
from polytile.codegen.function_names import ENTRY
from polytile.cost import cpp_matmul as prior
from polytile.matmul import cpp as gemm
from polytile.matmul import packed_weights
from polytile.matmul.cpp import GemmConfig, Machine
from polytile.matmul.cpp import epilogue as cpp_epilogue
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.problem import Config, digest
from polytile.runtime import toolchain


@functools.cache
def _machine() -> Machine:
    return Machine.detected()


def product_candidates(kernel: GemmKernel, name: str, threads: Sequence[int]) -> list[Candidate]:
    """A C++ kernel for each config and number of threads. For a short K the epilogue is compiled into the matmul; for a long one
    the matmul calls it through a pointer (cpp_matmul.py)."""
    tool = toolchain.find()
    spec = kernel.spec
    lanes = packed_weights.lanes_of(spec)
    made_from = digest(f"{tool.identity} {kernel.digest}")
    inlined = functools.cache(
        lambda config: gemm.generate(
            spec, config, ENTRY, _epilogue(kernel, lanes), lanes, panels_at=len(kernel.tensors) - 1 if kernel.packed else 0
        )
    )
    core = functools.cache(lambda config: matmul.core_source(spec, config, lanes))
    finish = functools.cache(lambda: matmul.epilogue_source(kernel, lanes))
    generated: list[Candidate] = []
    for count in threads:
        for slot, config in enumerate(gemm.configs(spec, lanes, kernel.packed)):
            if any(kernel.prologues) and config.form != "tile_prepacked":
                continue
            recipe = f"{made_from} {config}"
            numbers = Config(tuple(sorted([*config.as_config().values, ("threads", count)])))
            label = f"{config} t{count}"
            known, whole = _prediction(kernel, config, count), functools.partial(inlined, config)
            if kernel.epilogue is None:
                generated.append(CppCandidate(label, numbers, name, known, recipe, whole))
                continue
            short, long = _by_depth(known)
            parts = functools.partial(core, config), finish
            generated.append(CppCandidate(f"inline {label}", numbers, name, short, recipe, whole))
            generated.append(MatmulCandidate(label, numbers, name, long, recipe, parts, slot))
    for candidate in generated:
        candidate.declines = gemm.amx.DENIED if candidate.config.get("amx") else ""
    return generated


def _epilogue(kernel: GemmKernel, lanes: int) -> str | None:
    return cpp_epilogue.generate(kernel, lanes) if kernel.epilogue is not None else None


def _by_depth(known: Prediction) -> tuple[Prediction, Prediction]:
    """`known`, valid only for K up to INLINE_UP_TO, and only for K beyond it."""
    return (
        replace(known, valid=lambda size: size["K"] <= matmul.INLINE_UP_TO and known.valid(size)),
        replace(known, valid=lambda size: size["K"] > matmul.INLINE_UP_TO and known.valid(size)),
    )


def _prediction(kernel: GemmKernel, config: GemmConfig, threads: int) -> Prediction:
    """Whether a config can run at given sizes (threads need enough work to share), and what it is predicted to take."""
    machine, spec = _machine(), kernel.spec

    def valid(size: Mapping[str, int]) -> bool:
        """It reads no size that it does not depend on: what depends on none serves at any (dispatch/fallbacks.py)."""
        if not gemm.valid(spec, config, kernel.average(size) if config.form == "stream" else size):
            return False
        return threads == 1 or size["batch"] * size["M"] * size["N"] * max(1, size["K"]) >= 1 << 15

    def cost(size: Mapping[str, int]) -> float:
        return prior.cost(spec, config, kernel.average(size), threads, machine)

    def terms(size: Mapping[str, int]) -> dict[str, float]:
        return {**work_terms(kernel, size), **prior.terms(spec, config, kernel.average(size), threads, machine)}

    return Prediction(valid, cost, terms)
