"""Where the rows of a batch lie whose sequences have lengths of their own: packed one after another, or in pages.

    q_starts (B + 1)     sequence b has rows q_starts[b] to q_starts[b + 1] of q and out, which are (Hq, Tq, D)
    k_starts (B + 1)     the same of k and v, which are (Hkv, Tk, D)
    table (B, Slots)     key n of sequence b is row n % Page of page table[b, n // Page] of k and v, (Pages, Hkv, Page, D)
    k_used (B)           only so many of its keys does sequence b have

Mq and Mkv are then the most rows and keys of a sequence, and masks count within a sequence. FlashAttention: cu_seqlens_q,
cu_seqlens_k, block_table, seqused_k. vLLM: query_start_loc, block_table, seq_lens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

Extents = tuple[str, tuple[str, ...]]
"""The letters of a tensor's dimensions, and the names of their sizes."""

INDICES: dict[str, Extents] = {
    "q_starts": ("e", ("Ends",)), "k_starts": ("e", ("Ends",)), "table": ("bs", ("B", "Slots")), "k_used": ("b", ("B",)),
}  # fmt: skip
"""The tensors of integers. A negative page counts from the last one."""
PAGE = 16
"""Rows of a page where no call says how many there are."""


@dataclass(frozen=True)
class Layout:
    """The types of the tensors of integers, None for those that there are not. `table` excludes `k_starts`."""

    q_starts: torch.dtype | None = None
    k_starts: torch.dtype | None = None
    table: torch.dtype | None = None
    k_used: torch.dtype | None = None

    @property
    def indices(self) -> tuple[tuple[str, torch.dtype], ...]:
        """The names and types of the tensors of integers, in order."""
        named = ((name, getattr(self, name)) for name in INDICES)
        return tuple((name, dtype) for name, dtype in named if dtype is not None)

    @property
    def own_rows(self) -> bool:
        """Whether sequences have different numbers of rows of q."""
        return self.q_starts is not None

    @property
    def own_keys(self) -> bool:
        """Whether sequences have different numbers of keys."""
        return self.k_starts is not None or self.k_used is not None

    @property
    def sizes(self) -> tuple[str, ...]:
        """Sizes that a problem has besides its own, in order."""
        starts = self.q_starts is not None or self.k_starts is not None
        own = [("Ends", starts), ("Tq", self.q_starts is not None), ("Tk", self.k_starts is not None)]
        own += [(name, self.table is not None) for name in ("Pages", "Page", "Slots")]
        return tuple(name for name, there in own if there)

    def extents(self, name: str, plain: Extents) -> Extents:
        """The dimensions of the tensor `name`, which are `plain` where every sequence has as many rows and keys."""
        if name in INDICES:
            return INDICES[name]
        letters, names = plain
        if "m" in letters and "n" not in letters and self.q_starts is not None:
            return letters[1:], tuple("Tq" if each == "Mq" else each for each in names[1:])
        if "n" in letters and "m" not in letters and self.table is not None:
            return "p" + letters[1:], ("Pages", names[1], "Page", names[3])
        if "n" in letters and "m" not in letters and self.k_starts is not None:
            return letters[1:], tuple("Tk" if each == "Mkv" else each for each in names[1:])
        return plain

    def completed(self, size: Mapping[str, int]) -> dict[str, int]:
        """`size` with the sizes that it lacks, as if all sequences were of the largest."""
        slots = -(-size["Mkv"] // size.get("Page", PAGE))
        dense = {
            "Ends": size["B"] + 1, "Tq": size["B"] * size["Mq"], "Tk": size["B"] * size["Mkv"], "Page": PAGE, "Slots": slots,
            "Pages": size["B"] * slots,
        }  # fmt: skip
        return {**{name: dense[name] for name in self.sizes}, **size}

    def mean(self, size: Mapping[str, int]) -> Mapping[str, int]:
        """Sizes with as many rows and keys a sequence as there are on average, by which a call is predicted."""
        count = max(1, size["B"])
        means = dict(size)
        for name, total in (("Mq", "Tq"), ("Mkv", "Tk")):
            if total in self.sizes and total in size:
                means[name] = min(size[name], -(-size[total] // count))
        return means
