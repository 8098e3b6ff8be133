"""Products of CUTLASS's collectives as candidates. Each is a cubin, and is compiled, stored, checked and launched like that of
a generated Triton kernel (docs/decisions/0020)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from polytile import options
from polytile.candidates.one_architecture import OneArchitecture
from polytile.candidates.product_terms import work_terms
from polytile.candidates.triton import Specialised, TritonCandidate, Work, parameter
from polytile.candidates.triton_matmul import Arguments
from polytile.codegen.function_names import renamed
from polytile.codegen.triton.kernel import Launch, TritonKernel
from polytile.cost import cutlass as prior
from polytile.cost import triton_matmul
from polytile.cost.triton_matmul import Access
from polytile.matmul.cutlass import configs, text
from polytile.matmul.cutlass.weights import weights
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.configs import Kind
from polytile.problem import Config, Scalar, digest
from polytile.runtime.cuda import cubins
from polytile.runtime.cuda import cutlass as toolkit
from polytile.runtime.cuda.cutlass import Toolkit
from polytile.runtime.target import Target
from polytile.schedule.facts import Facts

WORKER = "polytile.codegen.cutlass.worker"
ARCH = "sm_90a"
"""What kernels for Hopper are compiled for. Those for earlier devices are compiled for the device's compute capability."""

SIZES = ("batch", "M", "N", "K")

REMEMBERED = 64
"""For how many sizes a product remembers which of its configs are worth trying."""


@dataclass(frozen=True)
class CutlassWork(Work):
    """What the CUTLASS candidates of one product share."""

    product: GemmKernel = field(kw_only=True)
    tools: Toolkit = field(kw_only=True)

    @functools.cached_property
    def recipe(self) -> str:
        fixed = " ".join(file.read_text() for file in text.TEXTS.values())
        return digest(f"cutlass {self.tools.identity} {self.device.sms} {fixed} {self.kernel.text}")

    def order(self, one: Launch, symbol: str, target: int | str | None = None) -> cubins.Order:
        capability = self.device.capability
        arch = ARCH if capability == configs.CAPABILITY else f"sm_{capability}"
        job = {
            "source": renamed(one.source, symbol), "symbol": symbol, "arch": arch, "compiler": str(self.tools.compiler),
            "includes": list(self.tools.includes), "num_warps": one.num_warps, **dict(one.own),
            "descriptors": [list(text.copied(self.product, each)) for each in one.descriptors],
        }  # fmt: skip
        return cubins.Order(self.name, WORKER, job, self.tools.identity, ".cu")

    def parameters(self, one: Launch, tensors: Mapping[str, int], symbols: Mapping[str, int]) -> Iterator[tuple[int, int]]:
        return (parameter(argument, tensors, symbols) for argument in one.arguments)

    def memory(self, facts: cubins.Facts) -> tuple[int, ...]:
        return ()


class CutlassCandidate(TritonCandidate):
    """One config of a product. It is right at all sizes of regimes whose operands the copy engine accepts (text.generate)."""

    origin = "cutlass"
    hard_limits = False
    may_spill = False

    @property
    def traits(self) -> tuple[tuple[str, Scalar], ...]:
        return ("schedule", f"cutlass {configs.how(self.config)}"), ("n", self.config["n"])

    @property
    def form(self) -> type[Specialised]:
        return _Specialised


class _Specialised(OneArchitecture):
    """The form for a regime; it fails to compile if the copy engine does not accept the regime's operands."""

    origin = CutlassCandidate.origin


def product_candidates(kernel: GemmKernel, name: str, target: torch.device) -> tuple[CutlassCandidate, ...]:
    """Every config that fits the device, in canonical order; empty if CUTLASS has no such product, or none for the device.
    Raises CompilerMissing where headers or a compiler are missing, or the driver is older than the compiler."""
    device, kind = Target.of(target).facts, Kind.of(kernel)
    older = device.capability in configs.OLDER
    if not (text.able_before_hopper(kernel) if older else device.capability == configs.CAPABILITY and text.able(kernel)):
        return ()
    tools = toolkit.find()
    if target.type == "cuda":
        toolkit.check_driver(tools)
    integers = weights(kernel)
    if older:
        own = configs.multistage_configs(kernel.in_dtype, device)
    elif integers is not None:
        own = configs.mixed_configs(kernel.in_dtype, integers.bits, device)
    else:
        own = configs.configs(kernel.in_dtype, kernel.layouts[1] == "k", device, kernel.scales)
    a, b = (Access(along_k=layout == "k") for layout in kernel.layouts)
    accesses = a, replace(b, itemsize=integers.bits / 8) if integers is not None else b

    def make(config: Config, facts: Facts) -> TritonKernel:
        return text.generate(kernel, config, facts, device.sms)

    @functools.lru_cache(REMEMBERED)
    def chosen(batch: int, m: int, n: int, k: int, limit: int) -> frozenset[Config]:
        """The configs that take part at these sizes: those that the prior ranks first."""
        size = {"batch": batch, "M": m, "N": n, "K": k}
        pay = [config for config in own if configs.pays(config, size, device)]
        fit = [config for config in pay if configs.covers(config, size)] or pay
        return frozenset(sorted(fit, key=lambda config: cost(config, size))[:limit])

    def cost(config: Config, size: Mapping[str, int]) -> float:
        return prior.cost(kind, config, size, device, accesses)

    def valid(config: Config, size: Mapping[str, int]) -> bool:
        return config in chosen(*(size[name] for name in SIZES), int(options.get("cutlass_configs")))

    def terms(config: Config, size: Mapping[str, int]) -> dict[str, float]:
        return {**work_terms(kernel, size), **triton_matmul.terms(kind, config, size, device, accesses)}

    work = CutlassWork(Arguments(kernel), name, device, target.index or 0, make, product=kernel, tools=tools)
    judges = valid, cost, terms
    return tuple(CutlassCandidate(configs.label(c), c, work, *(functools.partial(each, c) for each in judges)) for c in own)
