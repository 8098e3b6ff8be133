"""The documents and their code blocks, and what two outputs have in common whatever the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md"),
    *(path for folder in ("docs", "examples", ".github") for path in (ROOT / folder).rglob("*.md")),
]  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, which is named from the root."""

    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.partition("\n")[0]


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
        yield Block(page, language, text)


def anchors(text: str) -> set[str]:
    """What links into a page may name: its headings, as GitHub spells them, and its own anchors."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    spelled = {re.sub(r"[^\w -]", "", found).lower().replace(" ", "-") for found in headings}
    return spelled | set(re.findall(r'<a id="([^"]+)"', text))


MASKS = (
    (re.compile(r"/\S+"), "/…"),
    (re.compile(r"\b[0-9a-f]{8,}\b"), "…"),
    (re.compile(r"_[0-9a-f]{8}\b"), "_…"),
    (re.compile(r"→ .*"), "→ …"),
    (re.compile(r"\d(?:[\d., ]*\d)?"), "#"),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<= )[µm]s\b"), "s"),
)
"""What another machine, a busy one, another run or winner may change: paths, digests, choices with their grounds, numbers,
units of time."""


def skeleton(output: str) -> list[str]:
    """The lines of an output without that; of tables the headings alone."""
    lines = output.splitlines()
    body = {n for n, line in enumerate(lines) if line.startswith("|") and not _is_heading(lines, n)}
    kept = (line for n, line in enumerate(lines) if n not in body and line.strip() not in ("", "..."))
    return [_masked(line) for line in kept]


def _is_heading(lines: list[str], number: int) -> bool:
    return number + 1 < len(lines) and lines[number + 1].startswith("| -")


def _masked(line: str) -> str:
    for pattern, put in MASKS:
        line = pattern.sub(put, line)
    return line.strip()
