"""Candidates for a matmul: generated and library kernels, with the epilogue fused into them or run after them; and the
reference that they are checked against."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from polytile.candidates import cpp_matmul as matmul
from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp import ENTRY, CppCandidate
from polytile.candidates.cpp_matmul import MatmulCandidate
from polytile.candidates.inner_kernel import InnerKernel
from polytile.candidates.library import row_scales, split_k
from polytile.candidates.library.matmul import DequantisedLibrary, DualMatmulLibrary, ScaledLibrary
from polytile.candidates.library.native import AtenProduct
from polytile.candidates.library.padding import PaddedLibrary
from polytile.candidates.materialised_operands import MaterialisedOperands
from polytile.candidates.product_terms import work_terms
from polytile.errors import DeviceError, LoweringError
from polytile.ir import evaluate, expr, sizes
from polytile.ir.interpret import scaled_operand
from polytile.ir.program import compute_dtype
from polytile.matmul import cpp as gemm
from polytile.matmul import packed_weights, prologue, scales
from polytile.matmul.cpp import GemmConfig, GemmSpec, Machine
from polytile.matmul.cpp import epilogue as cpp_epilogue
from polytile.matmul.gemm_args import operands
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.problem import Config, digest
from polytile.runtime import toolchain
from polytile.schedule import canonical
from polytile.schedule.canonical import LoopKernel, TensorArg

log = logging.getLogger("polytile.candidates")

SOURCES = ("triton", "library", "cpp", "cublaslt")
"""All sources of candidates, in canonical order."""

PRODUCT = "product"
"""The name of the stored product in an epilogue that runs as a kernel of its own."""



def candidates(
    kernel: GemmKernel,
    name: str,
    threads: Sequence[int],
    unfused: InnerKernel | None,
    sources: Sequence[str],
    materialised: MaterialisedOperands | None = None,
) -> tuple[Candidate, ...]:
    """The candidates on a CPU, in the order of `sources`: the library's product, on which `unfused` runs the epilogue, and a
    generated kernel for each config of this instruction set and each number of threads. If none of the sources has any, the
    library's. For a product with a prologue, which is a weight's, `materialised` stands in the library's place, and the generated
    kernels are those that read the packed weight."""
    library = materialised or (DequantisedLibrary if kernel.scales is not None else AtenProduct)(kernel, unfused)
    factories: dict[str, Callable[[], Sequence[Candidate]]] = {
        "library": lambda: [library],
        "cpp": lambda: _generated(kernel, name, threads),
    }
    wanted = [candidate for source in sources if source in factories for candidate in factories[source]()]
    return tuple(wanted) or (library,)


def gpu_candidates(
    kernel: GemmKernel,
    name: str,
    target: torch.device,
    unfused: InnerKernel | None,
    sources: Sequence[str],
    materialised: MaterialisedOperands | None = None,
) -> tuple[Candidate, ...]:
    """The candidates on a GPU, or under Triton's interpreter if `target` is a CPU, in the order of `sources`: Triton's; the
    library's, plain, on padded operands and split along K; cuBLASLt's proposals. A product without a Triton form has only the
    library's. For a product with prologues, `materialised` stands for every candidate that takes its operands from memory. It
    takes part whatever the sources, as the library's does for dual and for scaled products."""
    of_triton = _of_triton(kernel, name, target) if "triton" in sources else ()
    only: Candidate | None = materialised
    if only is None and (kernel.second is not None or kernel.scales is not None):
        only = (DualMatmulLibrary if kernel.second is not None else ScaledLibrary)(kernel, unfused, target)
    factories: dict[str, Callable[[], Sequence[Candidate]]] = {"triton": lambda: of_triton}
    if only is not None:
        alone = [only]
        factories["library"] = lambda: alone
    else:
        factories["library"] = lambda: _of_library(kernel, target, unfused)
        factories["cublaslt"] = lambda: _of_cublaslt(kernel, name, target, unfused)
    left_out = "library" not in sources and (only is not None or not of_triton)
    in_order = (*sources, "library") if left_out else sources
    return tuple(candidate for source in in_order if source in factories for candidate in factories[source]())


def _of_triton(kernel: GemmKernel, name: str, target: torch.device) -> Sequence[Candidate]:
    from polytile.candidates.triton_matmul import gemm_candidates

    try:
        return gemm_candidates(kernel, name, target)
    except LoweringError as error:
        log.info("%s runs as a library call: %s", name, error)
        return ()


def _of_library(kernel: GemmKernel, target: torch.device, unfused: InnerKernel | None) -> Sequence[Candidate]:
    whole: list[Candidate] = [AtenProduct(kernel, unfused, target), PaddedLibrary(kernel, unfused, target)]
    return [*whole, *row_scales.candidates(kernel, target), *split_k.candidates(kernel, unfused, target)]


def _of_cublaslt(
    kernel: GemmKernel, name: str, target: torch.device, unfused: InnerKernel | None
) -> Sequence[Candidate]:
    if target.type != "cuda" or torch.version.hip is not None:
        return ()
    from polytile.candidates.library import cublaslt

    try:
        return cublaslt.candidates(kernel, unfused, target)
    except DeviceError as error:
        log.warning("%s has no candidates of cuBLASLt: %s", name, error)
        return ()


@functools.cache
def _machine() -> Machine:
    return Machine.detected()


def _generated(kernel: GemmKernel, name: str, threads: Sequence[int]) -> list[Candidate]:
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
            valid, cost = _judges(spec, config, count)
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


def _judges(spec: GemmSpec, config: GemmConfig, threads: int) -> tuple[Valid, Callable[[Mapping[str, int]], float]]:
    """Whether a config can run at given sizes (threads need enough work to share), and the seconds it is predicted to take."""
    machine = _machine()

    def valid(size: Mapping[str, int]) -> bool:
        """It reads no size that it does not depend on: what depends on none serves at any (dispatch/fallbacks.py)."""
        if not gemm.valid(spec, config, size):
            return False
        return threads == 1 or size["batch"] * size["M"] * size["N"] * max(1, size["K"]) >= 1 << 15

    return valid, lambda size: gemm.cost(spec, config, size, threads, machine)


def _terms(kernel: GemmKernel, config: GemmConfig, threads: int, size: Mapping[str, int]) -> dict[str, float]:
    """What a generated kernel's predicted seconds are made of."""
    return {**work_terms(kernel, size), **gemm.terms(kernel.spec, config, size, threads, _machine())}


def reference(kernel: GemmKernel) -> Callable[..., None]:
    """The product and the epilogue on the kernel's flat arguments, in float64 if these were widened, otherwise in the type of the
    sums. Operands with prologues are computed first."""
    plain = kernel.plain

    def run(*args: Any) -> None:
        precision = canonical.precision_of(kernel.tensors, args)
        makers = [prologue.evaluated(computed, precision) if computed is not None else None for computed in kernel.prologues]
        tensors, ints = operands(plain, prologue.materialise_operands(kernel, args, makers, precision is not None))
        sums = precision or compute_dtype(kernel.in_dtype)
        sums = sums if sums.is_floating_point else torch.float64  # exact up to 2^53
        left, right = tensors["A"].to(sums), tensors["B"].to(sums)
        blocks = scales.blocks(kernel)
        if "SA" in blocks:
            left = scaled_operand(left, blocks["SA"], tensors["SA"].to(sums))
        if "SB" in blocks:
            right = scaled_operand(right, blocks["SB"], *[tensors[name].to(sums) for name in ("SB", "ZB") if name in blocks])
        product = torch.matmul(left, right)
        if kernel.second is not None:
            product = product + torch.matmul(tensors["P"].to(sums), tensors["Q"].to(sums))
        if kernel.epilogue is None:
            tensors["C"].copy_(product)
            return
        values = dict(zip(kernel.symbols, ints, strict=True))
        shape = [sizes.evaluate(a.size, values) for a in kernel.epilogue.axes + kernel.epilogue.reduced]
        evaluate.run_loop(kernel.epilogue, tensors, values, precision, product.reshape(shape))

    return run


def epilogue_alone(kernel: GemmKernel) -> LoopKernel:
    """The epilogue as a loop kernel over a stored product (row-major batch × M × N, named `product`), then its own tensors."""
    loop = kernel.epilogue
    assert loop is not None
    axes = loop.axes + loop.reduced
    strides = sizes.contiguous_strides([a.size for a in axes])
    index = sum((a.symbol * s for a, s in zip(axes, strides, strict=True)), sizes.ZERO)
    dtype = compute_dtype(kernel.product_dtype)

    def rule(node: expr.Node, children: tuple[expr.Node, ...]) -> expr.Node:
        return expr.load(dtype, PRODUCT, index) if isinstance(node, expr.Accumulator) else expr.rebuild(node, children)

    body = loop.map_roots(lambda roots: expr.rewrite(roots, rule))
    tensors = (TensorArg(PRODUCT, kernel.product_storage, "in"), *kernel.outer)
    return LoopKernel(body, tensors, kernel.symbols)

