"""What a campaign measures: a TOML file.

    [campaign]
    device = "cpu"                  # or "cuda"
    search = "thorough"             # "all": every candidate; "exhaustive": also all configs of a GPU's products
    seconds = 3600                  # of measuring, all workers together; 0: no limit
    unit_seconds = 600              # after which a worker counts as hanging
    processes = 3                   # that measure each unit independently, and more if in doubt; default: 1
    store = "postgresql://…"        # default: a file in the campaign's folder

    [[model]]
    target = "model.py:encoder"     # a function, or one that returns a callable and a list of argument tuples
    shapes = "8x64"                 # of one call's tensors, if target is called with tensors
    sizes = "sizes.json"            # what `polytile sizes record` wrote; or
    sizes = {s0 = [8, 100], s1 = {low = 2, high = 4096, count = 12}}
    training = true                 # the backward graph too

    [[kernel]]
    target = "kernels.py:rms_norm"  # called directly, with tensors of each of these shapes
    shapes = ["64x512,64x512"]

Paths are relative to the file.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from polytile.errors import CampaignError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SEARCHES: dict[str, dict[str, Any]] = {
    "thorough": {"tune": "thorough", "learned": False},
    "all": {"tune": "all", "learned": False},
    "exhaustive": {"tune": "all", "configs": "exhaustive", "learned": False},
}
"""The options of each kind of search."""

MOST = 64
"""Maximum number of combinations of sizes per model by default; beyond it, a random sample is taken."""

SEED = 25


@dataclass(frozen=True)
class Model:
    """A model, and the sizes for which it is tuned: `hints` as in `polytile.compile`."""

    target: str
    hints: Any
    shapes: tuple[str, ...] = ()
    dtype: str = "float32"
    training: bool = False


@dataclass(frozen=True)
class KernelCalls:
    """A function that is called directly, with tensors of each of these shapes. Without shapes it supplies its own arguments."""

    target: str
    shapes: tuple[str, ...] = ()
    dtype: str = "float32"


@dataclass(frozen=True)
class Spec:
    """A campaign. `seconds`, `unit_seconds` and `processes` are as above; a `store` of "" means the folder's own."""

    device: str = "cpu"
    search: str = "thorough"
    seconds: float = 0.0
    unit_seconds: float = 600.0
    processes: int = 1
    store: str = ""
    models: tuple[Model, ...] = ()
    kernels: tuple[KernelCalls, ...] = ()


def read(path: Path) -> Spec:
    """The campaign that a file describes. Raises CampaignError, which names the invalid entry."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise CampaignError(f"the spec {path} cannot be read: {error.strerror}.") from None
    except tomllib.TOMLDecodeError as error:
        raise CampaignError(f"the spec {path} is no TOML: {error}.") from None
    _only(content, ("campaign", "model", "kernel"), f"{path}")
    told = content.get("campaign", {})
    plain: dict[str, Any] = {field.name: type(field.default) for field in fields(Spec) if field.name not in ("models", "kernels")}
    _only(told, plain, f"{path}, [campaign]")
    for name, value in told.items():
        if not isinstance(value, plain[name]) and not (plain[name] is float and type(value) is int):
            raise CampaignError(
                f"{path}, [campaign]: {name} is {value!r}; it has to be of type {plain[name].__name__}."
            )
        least = {float: 0, int: 1}.get(plain[name])
        if least is not None and value < least:
            raise CampaignError(f"{path}, [campaign]: {name} is {value!r}; it has to be {least} or more.")
    if told.get("search", "thorough") not in SEARCHES:
        raise CampaignError(f"{path}, [campaign]: search is {told['search']!r}; choose from {', '.join(SEARCHES)}.")
    models = tuple(_model(entry, path) for entry in content.get("model", ()))
    kernels = tuple(_kernel(entry, path) for entry in content.get("kernel", ()))
    if not models and not kernels:
        raise CampaignError(f"the spec {path} has nothing to measure; give it a [[model]] or a [[kernel]].")
    return Spec(**told, models=models, kernels=kernels)


def _only(entry: Any, known: Sequence[str] | Mapping[str, Any], place: str) -> None:
    unknown = [name for name in entry if name not in known] if isinstance(entry, dict) else [repr(entry)]
    if unknown:
        raise CampaignError(f"{place} has {unknown[0]!r}, which means nothing there; it may have {', '.join(known)}.")


def _target(entry: Mapping[str, Any], path: Path, kind: str) -> str:
    if not isinstance(entry.get("target"), str):
        raise CampaignError(f'{path}: a [[{kind}]] needs a target, such as "model.py:encoder".')
    return str((path.parent / entry["target"]).absolute())


def _shapes(entry: Mapping[str, Any], place: str) -> tuple[str, ...]:
    given = entry.get("shapes", ())
    listed = (given,) if isinstance(given, str) else given
    if not isinstance(listed, list | tuple) or not all(isinstance(shape, str) for shape in listed):
        raise CampaignError(f'{place}: shapes is {given!r}; write "64x512,512x256", or a list of such texts.')
    return tuple(listed)


def _model(entry: Mapping[str, Any], path: Path) -> Model:
    _only(entry, ("target", "shapes", "dtype", "sizes", "most", "training"), f"{path}, [[model]]")
    target = _target(entry, path, "model")
    place = f"{path}, the model {entry['target']}"
    given, most = entry.get("sizes"), entry.get("most", MOST)
    if isinstance(given, str):
        hints: Any = (path.parent / given).absolute()
    elif isinstance(given, dict) and given:
        hints = combinations(
            {name: _values(value, f"{place}, size {name}") for name, value in given.items()}, int(most)
        )
    elif isinstance(given, list) and given and all(type(size) is int and size >= 2 for size in given):
        hints = given
    else:
        raise CampaignError(
            f"{place} needs sizes: a list such as [8, 100], a table such as {{s0 = [8, 100]}}, or a file that "
            "`polytile sizes record` wrote."
        )
    return Model(
        target, hints, _shapes(entry, place), str(entry.get("dtype", "float32")), bool(entry.get("training", False))
    )


def _kernel(entry: Mapping[str, Any], path: Path) -> KernelCalls:
    _only(entry, ("target", "shapes", "dtype"), f"{path}, [[kernel]]")
    target = _target(entry, path, "kernel")
    return KernelCalls(
        target, _shapes(entry, f"{path}, the kernel {entry['target']}"), str(entry.get("dtype", "float32"))
    )


def _values(value: Any, place: str) -> list[int]:
    """The values of one size: as listed, or a number of them from low to high in geometric progression."""
    if isinstance(value, list) and value and all(type(size) is int and size >= 2 for size in value):
        return sorted(set(value))
    names = ("low", "high", "count")
    if isinstance(value, dict) and set(value) == set(names) and all(type(value[name]) is int for name in names):
        low, high, count = (value[name] for name in names)
        if 2 <= low <= high and count >= 1:
            steps = [k / max(1, count - 1) for k in range(count)]
            return sorted({round(math.exp(math.log(low) + step * math.log(high / low))) for step in steps})
    raise CampaignError(
        f"{place} is {value!r}; write a list of sizes of 2 or more, or {{low = 2, high = 4096, count = 12}}. Of 0 and 1 "
        "torch.compile makes graphs of their own."
    )


def combinations(values: Mapping[str, Sequence[int]], most: int) -> list[dict[str, int]]:
    """All combinations of the sizes, or a reproducible sample of `most`."""
    every = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    if len(every) <= most:
        return every
    chosen = random.Random(SEED).sample(range(len(every)), most)
    return [every[index] for index in sorted(chosen)]
