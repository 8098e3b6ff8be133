"""The library's kernels for attention as candidates, each called by its own operator, whatever
scaled_dot_product_attention would choose.

    flash      FlashAttention: 16-bit types, no mask but a causal one; on a CPU ATen's own kernel, with a mask
    efficient  the memory-efficient kernels: any mask that can be added
    cudnn      cuDNN's, which builds a plan for each combination of exact sizes
    math       all scores in memory; right for everything

The operator of a derivative takes the results of the forward operator of the same kind. The result and log-sum-exp of any
attention serve as well, since they are the same numbers; `gradients` adapts their shapes. Without dropout the random state is
not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.nn.functional import pad

from polytile.attention.arguments import Operands, computed, laid_out_for, operands, outputs, run_attention, write
from polytile.attention.problem import AttentionProblem, Causal
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.cost import library_attention as prior
from polytile.host_time import host_seconds, weighed
from polytile.ir.attention import EMPTY
from polytile.problem import Config, digest
from polytile.runtime.efficient_attention import added, aligned, efficient, efficient_backward, hidden, no_state, once
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
        self.causal = problem.causal is not Causal.NO

    @cached_property
    def source_hash(self) -> str:
        return digest(f"attention {self.name} {torch.__version__} {torch.backends.cudnn.version()} {self.problem.text}")

    def cost(self, sizes: Mapping[str, int]) -> float:
        if self.target.type == "cpu":
            return prior.cpu_cost(self.problem, self.name, sizes, torch.get_num_threads())
        seconds = prior.gpu_cost(self.problem, self.name, sizes, Target.of(self.target).facts)
        return weighed(seconds, host_seconds(self.problem.family, self.origin, self.target.type))

    def run(self, given: Operands) -> Result:
        """The result, and lse where the problem has one. The library's operators allocate both."""
        raise NotImplementedError

    def gradients(self, given: Operands) -> Sequence[torch.Tensor]:
        """The gradients of q, k and v, and of the bias if wanted, where the problem is a derivative."""
        raise NotImplementedError

    def entry(self) -> PythonEntry:
        """On a CPU its results take the place of planned memory. On a GPU they are copied: CUDA graphs are replayed as long as
        memory has the addresses that it had, which new tensors need not have."""
        if self.target.type != "cpu":
            return PythonEntry(self._call, self.recordable)
        return PythonEntry(self._call, self.recordable, results=self._results, outputs=outputs(self.problem))

    def computed(self, given: Operands) -> Sequence[torch.Tensor]:
        """All results, in the order of the problem's outputs."""
        if self.problem.backward:
            return self.gradients(given)
        out, lse = self.run(given)
        return (out,) if lse is None or not self.problem.lse else (out, lse)

    def _call(self, *args: Any) -> None:
        given = operands(self.problem, args)
        write(self.problem, given, self.computed(given))

    def _results(self, *args: Any) -> list[torch.Tensor]:
        return laid_out_for(self.problem, args, self.computed(operands(self.problem, args)))


class MathLibrary(AttentionLibrary):
    """Scores in memory, in the type in which they are computed."""

    name = "math"
    gives_changes = True

    @property
    def recordable(self) -> bool:  # type: ignore[override]
        """The lengths of sequences are read by the host."""
        return self.problem.layout is None

    def entry(self) -> PythonEntry:
        return super().entry() if self.problem.layout is None else PythonEntry(self._call)

    def computed(self, given: Operands) -> Sequence[torch.Tensor]:
        return computed(self.problem, given)

    def _call(self, *args: Any) -> None:
        run_attention(self.problem, operands(self.problem, args))


class FusedLibrary(AttentionLibrary):
    """A kernel that keeps scores on chip. It adds a mask to scores, so that one which replaces them is not for it."""

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether the operands are not empty, with dense rows of d, and the mask can be added."""
        problem = self.problem
        bias = problem.bias
        addable = bias is None or bias.dtype != torch.bool or (problem.empty_is_0 and bias.fill == EMPTY)
        right_when_empty = problem.empty_is_0 or problem.causal is not Causal.BOTTOM_RIGHT
        return addable and right_when_empty and _has_dense_rows(sizes, ("B", "Hq", "Hkv", "Mq", "Mkv", "D", "Dv"))

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
        q, k, v = self._padded(given.q, given.k, given.v)
        result = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, self.causal, False, scale=self._scale(given))
        return self._narrowed(result[0], given), result[1]

    def gradients(self, given: Operands) -> Sequence[torch.Tensor]:
        """Sums over blocks of keys are in a fixed order where torch wants deterministic algorithms."""
        out, saved, grad = given.left
        q, k, v, out, grad = self._padded(given.q, given.k, given.v, out, grad)
        found = aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, hidden(saved), None, None, q.shape[2], k.shape[2], 0.0, self.causal, *no_state(q),
            scale=self._scale(given),
        )  # fmt: skip
        return [self._narrowed(each, given) for each in found[:3]]

    def _scale(self, given: Operands) -> float:
        """That of rows without padding."""
        return given.q.shape[3] ** -0.5 if self.problem.scale is None else self.problem.scale

    @staticmethod
    def _narrowed(result: torch.Tensor, given: Operands) -> torch.Tensor:
        length = given.q.shape[3]
        return result if result.shape[3] == length else result.narrow(3, 0, length)

    @staticmethod
    def _padded(*each: torch.Tensor) -> Iterable[torch.Tensor]:
        over = -each[0].shape[3] % 8
        return (pad(one, (0, over)) if over else one for one in each)


class EfficientLibrary(FusedLibrary):
    """The memory-efficient kernels. Heads of q that share one of k read a copy of it. The causal mask of the derivative counts
    from the top left."""

    name = "efficient"
    gives_changes = True

    def valid(self, sizes: Mapping[str, int]) -> bool:
        problem = self.problem
        aligned = all(sizes[name] * problem.dtype.itemsize % 16 == 0 for name in ("D", "Dv"))
        derived = not problem.backward or problem.causal is not Causal.BOTTOM_RIGHT or sizes["Mq"] == sizes["Mkv"]
        return aligned and derived and super().valid(sizes)

    def run(self, given: Operands) -> Result:
        problem = self.problem
        out, lse = efficient(given.q, given.k, given.v, given.bias, problem.scale, problem.causal.value, problem.lse)
        return self.completed(out, given, zeros=True), lse

    def gradients(self, given: Operands) -> Sequence[torch.Tensor]:
        out, saved, grad = given.left
        how = self.problem.scale, self.causal, self.problem.changes
        return efficient_backward(grad, given.q, given.k, given.v, given.bias, out, saved, *how)


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
        bias, problem = aligned(given.bias, given.q, given.k), self.problem
        result = aten._scaled_dot_product_cudnn_attention(
            given.q, given.k, given.v, bias, problem.lse, 0.0, self.causal, False, scale=problem.scale
        )
        return self.completed(result[0], given, zeros=False), result[1].reshape(given.q.shape[:3]) if problem.lse else None

    def gradients(self, given: Operands) -> Sequence[torch.Tensor]:
        (out, saved, grad), bias = given.left, aligned(given.bias, given.q, given.k)
        return aten._scaled_dot_product_cudnn_attention_backward(
            grad, given.q, given.k, given.v, out, hidden(saved).unsqueeze(3), *no_state(grad), bias, None, None,
            given.q.shape[2], given.k.shape[2], 0.0, self.causal, scale=self.problem.scale,
        )  # fmt: skip


class PackedFlashLibrary(AttentionLibrary):
    """FlashAttention of packed sequences, whose causal mask counts from the bottom right of each."""

    name = "flash"
    origin = "library"

    def valid(self, sizes: Mapping[str, int]) -> bool:
        fits = sizes["D"] == sizes["Dv"] <= 256 and sizes["D"] % 8 == 0
        return fits and _has_dense_rows(sizes, ("B", "Hq", "Hkv", "Mq", "Mkv", "D", "Tq", "Tk"))

    def _how(self) -> dict[str, Any]:
        """What both operators take by name."""
        before, after = self.problem.window or (-1, 0 if self.problem.causal is Causal.BOTTOM_RIGHT else -1)
        return {"scale": self.problem.scale, "window_size_left": before, "window_size_right": after}

    def _where(self, given: Operands) -> tuple[Any, ...]:
        """What both take after their operands: where sequences start, the longest of each, and the mask."""
        starts = given.indices["q_starts"], given.indices["k_starts"]
        return *starts, given.rows, given.keys, 0.0, self.causal

    def run(self, given: Operands) -> Result:
        q, k, v = (each.transpose(0, 1) for each in (given.q, given.k, given.v))
        used = given.indices.get("k_used")
        out, lse, *_ = aten._flash_attention_forward(q, k, v, *self._where(given), False, seqused_k=used, **self._how())
        return out.transpose(0, 1), torch.where(lse == -EMPTY, EMPTY, lse) if self.problem.lse else None

    def gradients(self, given: Operands) -> Sequence[torch.Tensor]:
        out, saved, grad = given.left
        q, k, v, out, grad = (each.transpose(0, 1) for each in (given.q, given.k, given.v, out, grad))
        found = aten._flash_attention_backward(
            grad, q, k, v, out, hidden(saved), *self._where(given), *no_state(q), **self._how()
        )
        return [each.transpose(0, 1) for each in found]


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
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            given.q, given.k, given.v, 0.0, self.causal, attn_mask=self._mask(given), scale=self.problem.scale
        )
        if self.problem.lse and given.bias is not None:  # it gives 0 for a row that sees no key
            lse = lse.masked_fill(rows_without_a_key(given.bias).squeeze(-1), EMPTY)
        return self.completed(out, given, zeros=True), lse

    def gradients(self, given: Operands) -> Sequence[torch.Tensor]:
        out, saved, grad = given.left
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, given.q, given.k, given.v, out, saved, 0.0, self.causal, attn_mask=self._mask(given), scale=self.problem.scale
        )

    @staticmethod
    def _mask(given: Operands) -> torch.Tensor | None:
        """The bias in q's type, as (B, Hq, Mq, Mkv); 0 or -inf for one of booleans."""
        if given.bias is None:
            return None
        return added(given.bias, given.q.dtype).expand(*given.q.shape[:3], given.k.shape[2])


def _has_dense_rows(sizes: Mapping[str, int], extents: Sequence[str]) -> bool:
    """Whether rows of d are dense, and none of these sizes is 0."""
    return all(sizes.get(f"{name}_stride_d", 1) == 1 for name in "qkv") and all(sizes[name] > 0 for name in extents)


def rows_without_a_key(bias: torch.Tensor) -> torch.Tensor:
    """Where a bias hides all keys, (B, Hq, Mq, 1) or what broadcasts to it."""
    bias = once(bias)
    return bias.any(-1, keepdim=True).logical_not_() if bias.dtype == torch.bool else bias.amax(-1, keepdim=True) == EMPTY


def candidates(problem: AttentionProblem, target: torch.device) -> tuple[AttentionLibrary, ...]:
    """The library's kernels for a device, in canonical order."""
    on_gpu, kernels = target.type == "cuda", list[type[AttentionLibrary]]()
    if problem.layout is not None:
        kernels += [PackedFlashLibrary] if on_gpu and takes_packed_sequences(problem) else []
    elif not problem.computes_scores and not (problem.backward and problem.lse):  # they take no gradient of lse
        kernels += [FlashLibrary, EfficientLibrary, CudnnLibrary] if on_gpu else [CpuFlashLibrary]
    kernels.append(MathLibrary)
    kernels = [kernel for kernel in kernels if kernel.gives_changes or not problem.changes]
    return tuple(kernel(problem, target) for kernel in kernels if kernel.name != "cudnn" or torch.version.hip is None)
