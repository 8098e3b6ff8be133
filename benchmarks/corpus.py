"""Real text of many lengths: the paragraphs of this repository's own documents, as byte tokens."""

from __future__ import annotations

import re
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 512
SHORTEST = 8
GENERATED = re.compile(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", re.DOTALL)


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def paragraphs() -> list[bytes]:
    """Every paragraph of the documents in order, cut at 512 bytes; what a script generates is left out."""
    found = []
    for path in documents():
        if path.exists():
            text = GENERATED.sub("", path.read_text(encoding="utf-8"))
            found += [part.strip().encode()[:LONGEST] for part in re.split(r"\n\s*\n", text)]
    return [part for part in found if len(part) >= SHORTEST]


def by_length(limit: int) -> dict[int, torch.Tensor]:
    """Up to `limit` paragraphs of distinct lengths, spread evenly over those there are, as int64 tokens [1, length].

    Raises RuntimeError where the documents hold fewer than 20 lengths: too few to speak of changing sizes.
    """
    distinct: dict[int, bytes] = {}
    for part in paragraphs():
        distinct.setdefault(len(part), part)
    lengths = sorted(distinct)
    if len(lengths) < 20:
        raise RuntimeError(f"the documents have paragraphs of {len(lengths)} lengths; the demo needs 20 or more.")
    if len(lengths) > limit:
        lengths = sorted({lengths[round(i * (len(lengths) - 1) / (limit - 1))] for i in range(limit)})
    return {length: torch.tensor([list(distinct[length])], dtype=torch.int64) for length in lengths}


__all__ = ["by_length", "documents", "paragraphs"]
