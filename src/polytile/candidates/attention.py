"""All candidates for an attention, from every source in use."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polytile.attention.problem import AttentionProblem
from polytile.candidates import own_sources, sources
from polytile.candidates.candidate import Candidate
from polytile.candidates.sources import AttentionRequest
from polytile.candidates.unfused_attention import UnfusedAttention
from polytile.runtime.target import Target


def candidates(
    problem: AttentionProblem,
    target: torch.device,
    names: Sequence[str],
    stored: UnfusedAttention | None,
    threads: Sequence[int] = (1,),
) -> tuple[Candidate, ...]:
    """The candidates from the sources of these names, in their order; the library's too if no source has any that run at all
    sizes. `stored` keeps scores in memory and uses kernels of all sources. `threads` are the numbers of threads that generated
    CPU kernels are tried with."""
    request = AttentionRequest(problem, target, Target.of(target).native, threads)
    generated = sources.gather(sources.in_order(names), lambda source: source.attentions(request), own_sources.LIBRARY)
    return (*generated, *([stored] if stored is not None else []))
