"""Identity of this machine, as far as it affects which kernel is fastest. Part of every Problem and measurement."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from typing import Any

from polytile.errors import CompilerMissing
from polytile.problem import digest
from polytile.runtime import pytorch, toolchain
from polytile.runtime.cpu import cache_sizes, cpu, max_clock, usable_cores


def describe() -> dict[str, Any]:
    """Facts about the CPU and the libraries, all plain JSON values.

    `threads` is PyTorch's current number of threads; `cores` the cores that this process may use; `caches` the cache
    sizes in bytes by name; `flags` a digest of the processor's flags; `max_mhz` the maximum clock, if reported; `isa`
    and `compiler` describe the compiler ("unknown" and "none" without one).
    """
    return {**_fixed(), **_changing()}


def _changing() -> dict[str, Any]:
    isa, compiler = _compiler()
    return {"cores": usable_cores(), "threads": pytorch.torch_threads(), "isa": isa, "compiler": compiler}


def fingerprint() -> str:
    """Short id, equal whenever `describe()` is equal: "cpu-avx512-8t-1f0c9a52d8e4"."""
    return _fingerprint(tuple(_changing().items()))


@functools.lru_cache(maxsize=64)
def _fingerprint(changing: tuple[tuple[str, Any], ...]) -> str:
    facts = {**_fixed(), **dict(changing)}
    return remember(f"cpu-{facts['isa']}-{facts['threads']}t", facts)


def remember(prefix: str, facts: Mapping[str, Any]) -> str:
    """The fingerprint of a device with these facts: `prefix` and a digest of the facts. Registers them for `described`."""
    name = f"{prefix}-{digest(json.dumps(facts, sort_keys=True), 12)}"
    _described[name] = facts
    return name


def kind_of(fingerprint: str) -> str:
    """Device type in a fingerprint: "cpu" or "cuda"."""
    return fingerprint.partition("-")[0]


def described(fingerprint: str) -> tuple[tuple[str, str], ...]:
    """The facts behind a fingerprint made in this process, as text sorted by name; empty for any other."""
    facts: Mapping[str, Any] = _described.get(fingerprint, {})
    return tuple(sorted((name, value if isinstance(value, str) else json.dumps(value)) for name, value in facts.items()))


_described: dict[str, Mapping[str, Any]] = {}


@functools.cache
def _fixed() -> dict[str, Any]:
    return {
        "kind": "cpu",
        "machine": cpu().machine,
        "model": cpu().model,
        "flags": digest(" ".join(cpu().flags)),
        "caches": cache_sizes(),
        **max_clock(),
        "torch": pytorch.release(),
        "libc": _libc(),
    }


def _libc() -> str:
    """Name and version of the C library, whose libm eager calls: "glibc 2.36"."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (AttributeError, ValueError, OSError):
        return "unknown"


def _compiler() -> tuple[str, str]:
    try:
        tools = toolchain.find()
    except CompilerMissing:
        return "unknown", "none"
    return tools.isa, tools.version
