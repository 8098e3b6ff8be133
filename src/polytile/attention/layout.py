"""The memory layout of sequences of varying length: packed one after another, or in pages.

    q_starts (B + 1)     sequence b has rows q_starts[b] to q_starts[b + 1] of q and out, which are (Hq, Tq, D)
    k_starts (B + 1)     the same for k and v, which are (Hkv, Tk, D)
    table (B, Slots)     key n of sequence b is row n % Page of page table[b, n // Page] of k and v, (Pages, Hkv, Page, D)
    k_used (B)           sequence b has only this many of its keys

Mq and Mkv are then the most rows and keys of any sequence, and masks count within a sequence. FlashAttention calls these
cu_seqlens_q, cu_seqlens_k, block_table and seqused_k; vLLM calls them query_start_loc, block_table and seq_lens.
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
"""The dimensions of the integer tensors. A negative page counts from the last one."""
PAGE = 16
"""Rows of a page, if no call says how many."""


@dataclass(frozen=True)
class Layout:
    """The dtypes of the integer tensors; None for those that are absent. `table` excludes `k_starts`."""

    q_starts: torch.dtype | None = None
    k_starts: torch.dtype | None = None
    table: torch.dtype | None = None
    k_used: torch.dtype | None = None

    @property
    def indices(self) -> tuple[tuple[str, torch.dtype], ...]:
        """The names and dtypes of the integer tensors that are present, in order."""
        named = ((name, getattr(self, name)) for name in INDICES)
        return tuple((name, dtype) for name, dtype in named if dtype is not None)

    @property
    def own_rows(self) -> bool:
        """Whether sequences have different numbers of query rows."""
        return self.q_starts is not None

    @property
    def own_keys(self) -> bool:
        """Whether sequences have different numbers of keys."""
        return self.k_starts is not None or self.k_used is not None

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes that the layout adds to a problem, in order."""
        starts = self.q_starts is not None or self.k_starts is not None
        own = [("Ends", starts), ("Tq", self.q_starts is not None), ("Tk", self.k_starts is not None)]
        own += [(name, self.table is not None) for name in ("Pages", "Page", "Slots")]
        return tuple(name for name, there in own if there)

    def extents(self, name: str, plain: Extents) -> Extents:
        """The dimensions of the tensor `name`; `plain` has those it would have if all sequences were of equal length."""
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
        """`size`, with missing sizes filled in as if all sequences had the maximum length."""
        slots = -(-size["Mkv"] // size.get("Page", PAGE))
        dense = {
            "Ends": size["B"] + 1, "Tq": size["B"] * size["Mq"], "Tk": size["B"] * size["Mkv"], "Page": PAGE, "Slots": slots,
            "Pages": size["B"] * slots,
        }  # fmt: skip
        return {**{name: dense[name] for name in self.sizes}, **size}

    def mean(self, size: Mapping[str, int]) -> Mapping[str, int]:
        """Sizes with the average number of rows and keys per sequence, from which a call's time is predicted."""
        count = max(1, size["B"])
        means = dict(size)
        for name, total in (("Mq", "Tq"), ("Mkv", "Tk")):
            if total in self.sizes and total in size:
                means[name] = min(size[name], -(-size[total] // count))
        return means
