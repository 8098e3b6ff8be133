"""Choices imported from or exported to other tuners: the files of Triton's `cache_results`, triton-dejavu, and vLLM's fused
mixture of experts.

    Triton         {"key": [4096, "torch.float16"], "configs_timings": [[{"kwargs": {"BLOCK": 64}, ...}, [ms, ...]]]}
    triton-dejavu  {"cache": {"(4096, 'torch.float16')": "BLOCK: 64, num_warps: 4, ..."}, "timings": {...}, ...}
    vLLM           {"16": {"BLOCK_SIZE_M": 16, ..., "num_warps": 4, "num_stages": 3}, "triton_version": "3.6.0"}
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytile import files
from polytile.autotuner.call import plain
from polytile.autotuner.search import LAUNCH, config_of
from polytile.errors import StoreError
from polytile.runtime import regime

Key = tuple[Any, ...]
"""As in the `cache` of a Triton autotuner: the values that `key` names, then dtypes."""

Timings = Mapping[Any, Sequence[float]]
"""Milliseconds by config: the median, and the quantiles 0.2 and 0.8."""

MAY_BE_NONE = (*LAUNCH, "ir_override")
"""Fields of a config that its text may have as None: Triton 3.9 writes them all."""

FORMATS = ("triton", "dejavu", "vllm")


@dataclass(frozen=True)
class Tuning:
    """`config` was chosen for calls with these values and dtypes; None means any dtypes. With `nearest`, it also applies to all
    sizes to which no other tuning is nearer."""

    values: tuple[tuple[str, Any], ...]
    dtypes: tuple[str, ...] | None
    config: Any
    nearest: bool = False

    def distance(self, values: Mapping[str, Any], dtypes: Sequence[str], exact: Iterable[str]) -> float:
        """The distance from the sizes of a call, as the largest logarithm of a ratio; infinite if the tuning does not apply to
        such calls."""
        if self.dtypes is not None and self.dtypes != tuple(dtypes):
            return math.inf
        return max((_distance(value, values.get(name), self.nearest, name in exact) for name, value in self.values), default=0.0)


def _distance(own: Any, other: Any, nearest: bool, exact: bool) -> float:
    if own == other and type(own) is type(other):
        return 0.0
    if type(own) is not int or type(other) is not int or exact or min(own, other) < 0:
        return math.inf
    if not nearest and regime.bucket(own) != regime.bucket(other):
        return math.inf
    return abs(math.log((own + 1) / (other + 1)))


def read(place: Path, name: str, keys: Sequence[str], size: str) -> list[Tuning]:
    """The tunings of kernel `name` in a file, or in all its files in a folder.

    Parameters
    ----------
    keys
        The names in the kernel's `key`.
    size
        The parameter that corresponds to the batch size in vLLM's files.

    Raises
    ------
    StoreError
        If a file cannot be read.
    """
    if place.is_dir():
        paths = [path for path in sorted(place.rglob("*.json")) if _is_of(path, name)]
        if not paths:
            raise StoreError(f"{place} has no tunings of kernel {name!r}: no {name}.autotune.json, and no {name}-.../cache.json.")
    else:
        paths = [place]
    return [tuning for path in paths for tuning in _read_file(path, keys, size)]


def _is_of(path: Path, name: str) -> bool:
    return path.name == f"{name[:150]}.autotune.json" or (path.name == "cache.json" and path.parent.name.startswith(f"{name}-"))


def _read_file(path: Path, keys: Sequence[str], size: str) -> list[Tuning]:
    try:
        said = json.loads(path.read_text())
        if "configs_timings" in said:
            return list(_of_triton(said, keys))
        if "cache" in said:
            return list(_of_dejavu(said, keys))
        if said and all(word == "triton_version" or word.isdigit() for word in said):
            if not size:
                raise StoreError(f"{path} has configs by batch size; say by size= which argument of the kernel that is.")
            return list(_of_vllm(said, size))
    except OSError as error:
        raise StoreError(f"the tunings {path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError, AttributeError, SyntaxError) as error:
        raise StoreError(f"the tunings {path} are damaged: {error}.") from None
    raise StoreError(f"{path} holds tunings of none of the forms {', '.join(FORMATS)}.")


def _of_triton(said: Mapping[str, Any], keys: Sequence[str]) -> Iterator[Tuning]:
    timed = [(times[0], config) for config, times in said["configs_timings"] if math.isfinite(times[0])]
    if timed:
        _, best = min(timed, key=lambda pair: pair[0])
        point = {**best["kwargs"], **{name: best[name] for name in LAUNCH if best.get(name) is not None}}
        yield _tuning(said["key"], keys, config_of(point))


def _of_dejavu(said: Mapping[str, Any], keys: Sequence[str]) -> Iterator[Tuning]:
    for key, config in said["cache"].items():
        items = (item.partition(": ")[::2] for item in config.split(", "))
        point = {name: _literal(value) for name, value in items}
        given = {name: value for name, value in point.items() if name not in MAY_BE_NONE or value is not None}
        yield _tuning(ast.literal_eval(key), keys, config_of(given))


def _of_vllm(said: Mapping[str, Any], size: str) -> Iterator[Tuning]:
    for batch, point in said.items():
        if batch != "triton_version":
            yield Tuning(((size, int(batch)),), None, config_of(point), nearest=True)


def _tuning(key: Sequence[Any], keys: Sequence[str], config: Any) -> Tuning:
    return Tuning(tuple(zip(keys, key, strict=False)), tuple(key[len(keys) :]), config)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# Export.


def write(
    place: Path, form: str, name: str, cache: Mapping[Key, Any], timings: Mapping[Key, Timings], batch: int,
    folder: Callable[[Key], str],
) -> list[Path]:  # fmt: skip
    """Write choices in one of FORMATS, and return the files.

    Parameters
    ----------
    batch
        Position in the key of the batch size, for vLLM's format.
    folder
        Returns the folder in which Triton looks for a key.
    """
    if form == "vllm":
        by_size = {str(key[batch]): point_of(config) for key, config in sorted(cache.items(), key=lambda item: item[0][batch])}
        return [_written(place, by_size)]
    if form == "dejavu":
        return [_written(place, _for_dejavu(name, cache, timings))]
    paths = []
    for key, config in cache.items():
        timed = dict(timings.get(key, {})) or {config: [0.0] * 3}
        timed[config] = [min(min(each) for each in timed.values())] * 3  # a near tie may go to another
        said = {"key": key, "configs_timings": [[fields_of(one), list(times)] for one, times in timed.items()]}
        paths.append(_written(place / folder(key) / f"{name[:150]}.autotune.json", said))
    return paths


def _for_dejavu(name: str, cache: Mapping[Key, Any], timings: Mapping[Key, Timings]) -> dict[str, Any]:
    labels = {"lables": ["ms", "min_ms", "max_ms"], "rep_t_ms": 0, "warmup_t_ms": 0}  # the format's own spelling
    times = {str(key): {"values": list(timings.get(key, {}).get(config, [0.0] * 3)), **labels} for key, config in cache.items()}
    return {
        "signature": name, "total_bench_time_s": 0.0, "evaluated_configs": max(map(len, timings.values()), default=1),
        "cache": {str(key): str(config) for key, config in cache.items()}, "timings": times,
    }  # fmt: skip


def point_of(config: Any) -> dict[str, Any]:
    """A config in the format of vLLM's files."""
    launch = {name: getattr(config, name) for name in ("num_warps", "num_stages")}
    return {**{name: plain(value) for name, value in config.kwargs.items()}, **launch}


def fields_of(config: Any) -> dict[str, Any]:
    """A config in the format of Triton's files."""
    return {**{name: value for name, value in vars(config).items() if name != "pre_hook"}, "pre_hook": None}


def triton_folder(jit: Any, key: Key, configs: Sequence[Any]) -> str:
    """The folder of Triton's cache in which its autotuner looks for the choice among these configs for a key."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key
    from triton.runtime.driver import driver

    target = make_backend(driver.active.get_current_target()).hash()
    environment = str(sorted(get_cache_invalidating_env_vars().items()))
    words = [triton_key(), target, jit.cache_key, environment, str(key), *map(str, configs)]
    digest = hashlib.sha256("-".join(words).encode()).hexdigest()
    return base64.b32encode(bytes.fromhex(digest)).decode().rstrip("=")  # the key format of triton.runtime.cache


def _written(path: Path, said: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, json.dumps(said, indent=1) + "\n")
    return path
