"""The library's kernels for attention as candidates, each called by its own operator, whatever
scaled_dot_product_attention would choose.

    flash      FlashAttention: 16-bit types, no mask but a causal one; on a CPU ATen's own kernel, with a mask
    efficient  the memory-efficient kernels: any mask that can be added
    cudnn      cuDNN's, which builds a plan for each combination of exact sizes
    math       all scores in memory; right for everything
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.nn.functional import pad

from polytile.attention.arguments import Operands, operands, run_attention
from polytile.attention.problem import AttentionProblem, Causal
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.cost import library_attention as prior
from polytile.ir.attention import EMPTY
from polytile.problem import Config, digest
from polytile.runtime.efficient_attention import added, aligned, efficient, once
from polytile.runtime.target import Target

aten = torch.ops.aten

Result = tuple[torch.Tensor, torch.Tensor | None]


class AttentionLibrary(Candidate):
    """One of the library's kernels. Subclasses say what it can do and call it."""

    origin = "sdpa"
    config = Config()
    recordable = True
    gives_changes = False
    """Whether the derivative may include that of the scores."""

    def __init__(self, problem: AttentionProblem, target: torch.device) -> None:
        self.problem, self.target = problem, target

    @cached_property
    def source_hash(self) -> str:
        return digest(f"attention {self.name} {torch.__version__} {torch.backends.cudnn.version()} {self.problem.text}")

    def cost(self, sizes: Mapping[str, int]) -> float:
        if self.target.type == "cpu":
            return prior.cpu_cost(self.problem, self.name, sizes, torch.get_num_threads())
        return prior.gpu_cost(self.problem, self.name, sizes, Target.of(self.target).facts)

    def run(self, given: Operands) -> Result:
        """The result, and lse where the problem has one. The library's operators allocate both."""
        raise NotImplementedError

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call, recordable=self.recordable)

    def _call(self, *args: Any) -> None:
        given = operands(self.problem, args)
        out, lse = self.run(given)
        given.out.copy_(out)
        if given.lse is not None and lse is not None:
            given.lse.copy_(lse)


class MathLibrary(AttentionLibrary):
    """Scores in memory, in the type in which they are computed."""

    name = "math"
    gives_changes = True

    @property
    def recordable(self) -> bool:  # type: ignore[override]
        """The lengths of sequences are read by the host."""
        return self.problem.layout is None

    def _call(self, *args: Any) -> None:
        run_attention(self.problem, operands(self.problem, args))


class FusedLibrary(AttentionLibrary):
    """A kernel that keeps scores on chip. It adds a mask to scores, so that one which replaces them is not for it."""

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether the operands are not empty, with dense rows of d, and the mask can be added."""
        problem = self.problem
        bias = problem.bias
        addable = bias is None or bias.dtype != torch.bool or (problem.empty_is_0 and bias.fill == EMPTY)
        named = ("B", "Hq", "Hkv", "Mq", "Mkv", "D", "Dv")
        dense = all(sizes.get(f"{name}_stride_d", 1) == 1 for name in "qkv")
        right_when_empty = problem.empty_is_0 or problem.causal is not Causal.BOTTOM_RIGHT
        return addable and dense and right_when_empty and all(sizes[name] > 0 for name in named)

    def added(self, given: Operands) -> torch.Tensor | None:
        """The bias in q's type, as (B, Hq, Mq, Mkv); 0 or -inf for one of booleans."""
        return added(given.bias, given.q.dtype) if given.bias is not None else None

    def aligned(self, given: Operands) -> torch.Tensor | None:
        """The bias as kernels load it: several elements at a time."""
        return aligned(given.bias, given.q, given.k)

    def completed(self, out: torch.Tensor, given: Operands, zeros: bool) -> torch.Tensor:
        """`out` with NaN in the rows that see no key, as the problem wants it; with 0 too, where the kernel is not known to give
        `zeros` there."""
        if given.bias is None or (self.problem.empty_is_0 and zeros):
            return out
        return out.masked_fill_(rows_without_a_key(given.bias), 0.0 if self.problem.empty_is_0 else float("nan"))


class FlashLibrary(FusedLibrary):
    """FlashAttention. With as many rows as keys both causal masks are one; else it has that from the bottom right alone."""

    name = "flash"
    origin = "library"

    def valid(self, sizes: Mapping[str, int]) -> bool:
        problem = self.problem
        square = problem.causal is not Causal.TOP_LEFT or sizes["Mq"] == sizes["Mkv"]
        fits = problem.bias is None and sizes["D"] == sizes["Dv"] <= 256 and problem.dtype.itemsize == 2
        return fits and square and super().valid(sizes)

    def run(self, given: Operands) -> Result:
        length, over = given.q.shape[3], -given.q.shape[3] % 8
        q, k, v = (pad(each, (0, over)) if over else each for each in (given.q, given.k, given.v))
        causal = self.problem.causal is not Causal.NO
        scale = length**-0.5 if self.problem.scale is None else self.problem.scale  # of rows without padding
        result = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
        return result[0].narrow(3, 0, length) if over else result[0], result[1]


class EfficientLibrary(FusedLibrary):
    """The memory-efficient kernels. Heads of q that share one of k read a copy of it."""

    name = "efficient"

    def valid(self, sizes: Mapping[str, int]) -> bool:
        aligned = all(sizes[name] * self.problem.dtype.itemsize % 16 == 0 for name in ("D", "Dv"))
        return aligned and super().valid(sizes)

    def run(self, given: Operands) -> Result:
        problem = self.problem
        out, lse = efficient(given.q, given.k, given.v, given.bias, problem.scale, problem.causal.value, problem.lse)
        return self.completed(out, given, zeros=True), lse


class CudnnLibrary(FusedLibrary):
    """cuDNN's kernels. The plan of a combination of sizes takes longer to build than thousands of calls."""

    name = "cudnn"

    @property
    def per_size(self) -> bool:
        return True

    def valid(self, sizes: Mapping[str, int]) -> bool:
        longest = 256 if Target.of(self.target).facts.capability == 90 else 128
        even = all(sizes[name] % 8 == 0 and sizes[name] <= longest for name in ("D", "Dv"))
        square = self.problem.causal is Causal.NO or sizes["Mq"] == sizes["Mkv"]
        return self.problem.dtype.itemsize == 2 and even and square and super().valid(sizes)

    def run(self, given: Operands) -> Result:
        causal = self.problem.causal is not Causal.NO
        result = aten._scaled_dot_product_cudnn_attention(
            given.q, given.k, given.v, self.aligned(given), self.problem.lse, 0.0, causal, False, scale=self.problem.scale
        )
        return self.completed(result[0], given, zeros=False), result[1].reshape(given.q.shape[:3]) if self.problem.lse else None


class PackedFlashLibrary(AttentionLibrary):
    """FlashAttention of packed sequences, whose causal mask counts from the bottom right of each."""

    name = "flash"
    origin = "library"

    def valid(self, sizes: Mapping[str, int]) -> bool:
        named = ("B", "Hq", "Hkv", "Mq", "Mkv", "D", "Tq", "Tk")
        dense = all(sizes.get(f"{name}_stride_d", 1) == 1 for name in "qkv")
        return (
            dense
            and all(sizes[name] > 0 for name in named)
            and sizes["D"] == sizes["Dv"] <= 256
            and sizes["D"] % 8 == 0
        )

    @property
    def placed(self) -> dict[str, Any]:
        """The operators' window."""
        before, after = self.problem.window or (-1, 0 if self.problem.causal is Causal.BOTTOM_RIGHT else -1)
        return {"window_size_left": before, "window_size_right": after}

    def run(self, given: Operands) -> Result:
        q, k, v = (each.transpose(0, 1) for each in (given.q, given.k, given.v))
        starts, used = (given.indices["q_starts"], given.indices["k_starts"]), given.indices.get("k_used")
        causal = self.problem.causal is not Causal.NO
        out, lse, *_ = aten._flash_attention_forward(
            q,
            k,
            v,
            *starts,
            given.rows,
            given.keys,
            0.0,
            causal,
            False,
            scale=self.problem.scale,
            seqused_k=used,
            **self.placed,
        )
        return out.transpose(0, 1), torch.where(lse == -EMPTY, EMPTY, lse) if self.problem.lse else None


def takes_packed_sequences(problem: AttentionProblem) -> bool:
    """Whether FlashAttention has a kernel for the memory layout of a problem's sequences."""
    layout = problem.layout
    own = layout is not None and layout.table is None and layout.q_starts == layout.k_starts == torch.int32
    used = layout is not None and layout.k_used in (None, torch.int32)
    return own and used and problem.dtype.itemsize == 2 and problem.scores is None and problem.bias is None


class CpuFlashLibrary(FusedLibrary):
    """ATen's kernel for CPUs. Its mask is added, and counts from the top left where it is causal."""

    name = "flash"
    origin = "library"

    def valid(self, sizes: Mapping[str, int]) -> bool:
        square = self.problem.causal is not Causal.BOTTOM_RIGHT or sizes["Mq"] == sizes["Mkv"]
        return square and sizes["D"] == sizes["Dv"] and super().valid(sizes)

    def run(self, given: Operands) -> Result:
        causal, bias = self.problem.causal is not Causal.NO, self.added(given)
        bias = bias.expand(*given.q.shape[:3], given.k.shape[2]) if bias is not None else None
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            given.q, given.k, given.v, 0.0, causal, attn_mask=bias, scale=self.problem.scale
        )
        if self.problem.lse and given.bias is not None:  # it gives 0 for a row that sees no key
            lse = lse.masked_fill(rows_without_a_key(given.bias).squeeze(-1), EMPTY)
        return self.completed(out, given, zeros=True), lse


def rows_without_a_key(bias: torch.Tensor) -> torch.Tensor:
    """Where a bias hides all keys, (B, Hq, Mq, 1) or what broadcasts to it."""
    bias = once(bias)
    return bias.any(-1, keepdim=True).logical_not_() if bias.dtype == torch.bool else bias.amax(-1, keepdim=True) == EMPTY


@dataclass(frozen=True)
class Kernels:
    """The library's kernels by where they run: on packed sequences, on a CPU, and on a GPU in canonical order."""

    packed: type[AttentionLibrary]
    cpu: type[AttentionLibrary]
    gpu: tuple[type[AttentionLibrary], ...]

    def candidates(self, problem: AttentionProblem, target: torch.device) -> tuple[AttentionLibrary, ...]:
        """The candidates for a device, in canonical order."""
        on_gpu, kernels = target.type == "cuda", list[type[AttentionLibrary]]()
        if problem.layout is not None:
            kernels += [self.packed] if on_gpu and takes_packed_sequences(problem) else []
        elif not problem.computes_scores and not (problem.backward and problem.lse):  # they take no gradient of lse
            kernels += self.gpu if on_gpu else [self.cpu]
        kernels.append(MathLibrary)
        kernels = [kernel for kernel in kernels if kernel.gives_changes or not problem.changes]
        return tuple(kernel(problem, target) for kernel in kernels if kernel.name != "cudnn" or torch.version.hip is None)


FORWARD = Kernels(PackedFlashLibrary, CpuFlashLibrary, (FlashLibrary, EfficientLibrary, CudnnLibrary))
