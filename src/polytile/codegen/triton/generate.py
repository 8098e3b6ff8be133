"""Whole Triton kernels for loops: the launches that a config names, under the facts of a regime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polytile.codegen.triton.cluster import cluster
from polytile.codegen.triton.cluster_column_reduction import cluster_column_reduction
from polytile.codegen.triton.cluster_columns import cluster_columns
from polytile.codegen.triton.column_parallel import column_parallel
from polytile.codegen.triton.column_reduction import column_reduction
from polytile.codegen.triton.index_search import first_occurrence, owner_computes
from polytile.codegen.triton.kernel import TritonKernel
from polytile.codegen.triton.schedules import SCHEDULES
from polytile.codegen.triton.segment_sums import atomic_sums
from polytile.codegen.triton.sorted_segments import sorted_segment_reduction
from polytile.codegen.triton.split import split
from polytile.codegen.triton.unit import Unit
from polytile.problem import Config
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.nest import Form, Nest, nest_of
from polytile.schedule.rewrite import one_sweep, plain_reductions

MANY: dict[str, Callable[[LoopKernel, Nest, Config, Facts, bool], TritonKernel]] = {
    "split": split, "cluster": cluster, "sums": column_reduction, "stripes": column_parallel, "scatter": atomic_sums,
    "leaders": first_occurrence, "seekers": owner_computes, "sorted": sorted_segment_reduction,
}  # fmt: skip
"""Variants of several launches, or of several programs that wait for each other."""


def spelled(kernel: LoopKernel, variant: str) -> LoopKernel:
    """`kernel` in the reductions that `variant` is generated from: rows in registers are gone through as often as it takes,
    rows in memory as seldom as possible."""
    if variant in ("looped", "split", "cluster"):
        return replace(kernel, loop=plain_reductions(one_sweep(kernel.loop), welford=False))
    return replace(kernel, loop=plain_reductions(kernel.loop))


def nest_for(kernel: LoopKernel, variant: str) -> tuple[LoopKernel, Nest]:
    """The kernel as `variant` spells it, and its layout."""
    own = spelled(kernel, variant)
    return own, replace(nest_of(own.loop), cutting=False)


def generate(kernel: LoopKernel, config: Config, facts: Facts, overlaps: bool = False) -> TritonKernel:
    """The launches of `kernel` under `config` (see `kernels.triton.variants`), right wherever `facts` hold and the config is
    valid. `overlaps`: they may start before what runs ahead of them has ended, which the device must know how to do
    (from 9.0 on). Raises LoweringError where some operation or type has no Triton form."""
    variant = str(config["variant"])
    own, nest = nest_for(kernel, variant)
    if variant == "cluster" and nest.form is Form.COLUMN:
        return cluster_columns(own, nest, config, facts, overlaps)
    if variant == "sums" and config.get("splits"):
        return cluster_column_reduction(own, nest, config, facts, overlaps)
    if variant in MANY:
        return MANY[variant](own, nest, config, facts, overlaps)
    unit = Unit(own, nest, config, facts, overlaps)
    SCHEDULES[variant](unit)
    return TritonKernel((unit.launch(),))
