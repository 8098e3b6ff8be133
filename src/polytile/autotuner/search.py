"""Search in a space of configs too large to list: a sample first, then the neighbours of the best config so far."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polytile.errors import SignatureError

LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")
SAMPLE, ROUNDS = 16, 4
"""Number of configs measured first at each regime, and the maximum number of rounds of measuring the best config's neighbours."""


@dataclass(frozen=True)
class Space:
    """`values` lists the values of each name of a config, ordered so that neighbours are similar. The sample is the same in every
    process. Raises SignatureError for a name without values."""

    values: tuple[tuple[str, tuple[Any, ...]], ...]

    @staticmethod
    def of(given: Mapping[str, Sequence[Any]]) -> Space:
        for name, values in given.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise SignatureError(f"search= takes a mapping from names to lists of values; {name!r} has {values!r}.")
        return Space(tuple((name, tuple(values)) for name, values in given.items()))

    @property
    def size(self) -> int:
        return math.prod(len(values) for _, values in self.values)

    def sample(self, count: int = SAMPLE) -> list[dict[str, Any]]:
        """`count` points, or all of them: the middle one, then points in which each value of each name appears about equally
        often."""
        if self.size <= count:
            return [dict(zip(self._names, point, strict=True)) for point in itertools.product(*(v for _, v in self.values))]
        points = [{name: values[len(values) // 2] for name, values in self.values}]
        columns = {name: _shuffled(values, count, name) for name, values in self.values}
        for number in range(count - 1):
            point = {name: column[number] for name, column in columns.items()}
            points += [point] if point not in points else []
        return points

    def beside(self, point: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Points that differ from `point` in one name by one step."""
        for name, values in self.values:
            at = values.index(point[name]) if point.get(name) in values else None
            for other in () if at is None else (at - 1, at + 1):
                if 0 <= other < len(values):
                    yield {**point, name: values[other]}

    @property
    def _names(self) -> list[str]:
        return [name for name, _ in self.values]


def _shuffled(values: Sequence[Any], count: int, salt: str) -> list[Any]:
    """`count` values, each equally often, in an order that depends only on `salt`."""
    many = [values[number % len(values)] for number in range(count)]
    keys = [hashlib.sha256(f"{salt} {number}".encode()).digest() for number in range(count)]
    return [value for _, value in sorted(zip(keys, many, strict=True), key=lambda pair: pair[0])]


def config_of(point: Mapping[str, Any]) -> Any:
    """Triton's Config of a point: launch parameters, and the kernel's own constants."""
    from triton import Config

    launch = {name: point[name] for name in LAUNCH if name in point}
    return Config({name: value for name, value in point.items() if name not in launch}, **launch)


def point_of(config: Any) -> dict[str, Any]:
    """All numbers of Triton's Config by name: the inverse of `config_of`."""
    return {**config.kwargs, **{name: getattr(config, name) for name in LAUNCH}}
