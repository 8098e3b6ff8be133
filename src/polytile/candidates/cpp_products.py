"""Generated C++ products: a candidate for each config of this processor's instruction set and each number of threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from polytile.candidates import cpp_matmul as matmul
from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp import CppCandidate
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
            valid, cost = _judges(kernel, config, count)
            terms = functools.partial(_terms, kernel, config, count)
            if kernel.epilogue is None:
                generated.append(
                    CppCandidate(label, numbers, name, functools.partial(inlined, config), valid, cost, recipe, terms)
                )
                continue
            short, long = _by_depth(valid)
            generated.append(
                CppCandidate(f"inline {label}", numbers, name, functools.partial(inlined, config), short, cost, recipe, terms)
            )
            generated.append(
                MatmulCandidate(
                    label, numbers, name, (functools.partial(core, config), finish), slot, long, cost, recipe, terms
                )
            )
    return generated


def _epilogue(kernel: GemmKernel, lanes: int) -> str | None:
    return cpp_epilogue.generate(kernel, lanes) if kernel.epilogue is not None else None


Valid = Callable[[Mapping[str, int]], bool]


def _by_depth(valid: Valid) -> tuple[Valid, Valid]:
    """`valid` restricted to K up to INLINE_UP_TO, and to K beyond it."""
    return (
        lambda size: size["K"] <= matmul.INLINE_UP_TO and valid(size),
        lambda size: size["K"] > matmul.INLINE_UP_TO and valid(size),
    )


def _judges(kernel: GemmKernel, config: GemmConfig, threads: int) -> tuple[Valid, Callable[[Mapping[str, int]], float]]:
    """Whether a config can run at given sizes (threads need enough work to share), and the seconds it is predicted to take."""
    machine, spec = _machine(), kernel.spec

    def valid(size: Mapping[str, int]) -> bool:
        """It reads no size that it does not depend on: what depends on none serves at any (dispatch/fallbacks.py)."""
        if not gemm.valid(spec, config, kernel.average(size) if config.form == "stream" else size):
            return False
        return threads == 1 or size["batch"] * size["M"] * size["N"] * max(1, size["K"]) >= 1 << 15

    return valid, lambda size: prior.cost(spec, config, kernel.average(size), threads, machine)


def _terms(kernel: GemmKernel, config: GemmConfig, threads: int, size: Mapping[str, int]) -> dict[str, float]:
    """What a generated kernel's predicted seconds are made of."""
    return {**work_terms(kernel, size), **prior.terms(kernel.spec, config, kernel.average(size), threads, _machine())}
