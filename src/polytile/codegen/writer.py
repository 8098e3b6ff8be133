"""Indented source text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Writer:
    """Lines of source with a current indentation depth."""

    def __init__(self, indent: str = "  ") -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.indent = indent

    def line(self, text: str) -> None:
        self.lines.append(self.indent * self.depth + text if text else "")

    def extend(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.line(text)

    def open(self, text: str) -> None:
        """Writes a line that opens a block."""
        self.line(text)
        self.depth += 1

    def close(self, text: str = "}") -> None:
        """Writes the line that closes the block."""
        self.depth -= 1
        self.line(text)

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """Writes the lines between `head` and `tail` one step deeper."""
        self.open(head)
        yield
        self.close(tail)

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """Writes the lines after `head` one step deeper, without a closing line."""
        self.open(head)
        yield
        self.depth -= 1

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
