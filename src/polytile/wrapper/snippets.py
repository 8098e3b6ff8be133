"""The parts of a program in C that are Python's: small functions of tensors and numbers, all of a program compiled at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polytile.runtime import programs


class Snippets:
    """Functions by number. `scope` holds what their text names besides their parameters; it may grow until they are made."""

    def __init__(self, name: str, scope: Mapping[str, Any]) -> None:
        self.name, self.scope = name, scope
        self._text: list[str] = []
        self._made: dict[int, Callable[..., Any]] = {}
        self._count = 0

    def expression(self, text: str, parameters: Sequence[str]) -> int:
        """The number of a function that returns the value of `text`."""
        self._text += [f"def _part{self._count}({', '.join(parameters)}):", f"    return {text}"]
        return self._next()

    def callable(self, function: Callable[..., Any]) -> int:
        """The number of a function that is there already."""
        self._made[self._count] = function
        return self._next()

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def all(self) -> tuple[Callable[..., Any], ...]:
        """The functions, in order."""
        scope = dict(self.scope)
        exec(compile("\n".join(self._text), programs.new_file(self.name), "exec"), scope)
        return tuple(self._made.get(number) or scope[f"_part{number}"] for number in range(self._count))


__all__ = ["Snippets"]
