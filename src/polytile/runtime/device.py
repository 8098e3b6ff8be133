"""Which machine this is, as far as it decides what kernel is fastest: part of every Problem and measurement."""

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

    `threads` is PyTorch's number of threads now; `cores` are those this process may use; `caches` are bytes by name;
    `flags` is a digest of the processor's flags; `max_mhz` is there where the system says how fast the clock may run; `isa`
    and `compiler` come from the compiler ("unknown" and "none" where there is none).
    """
    return {**_fixed(), **_changing()}


def _changing() -> dict[str, Any]:
    isa, compiler = _compiler()
    return {"cores": usable_cores(), "threads": pytorch.torch_threads(), "isa": isa, "compiler": compiler}


def fingerprint() -> str:
    """Short id, equal wherever `describe()` is equal: "cpu-avx512-8t-1f0c9a52d8e4"."""
    return _fingerprint(tuple(_changing().items()))


@functools.lru_cache(maxsize=64)
def _fingerprint(changing: tuple[tuple[str, Any], ...]) -> str:
    facts = {**_fixed(), **dict(changing)}
    return remember(f"cpu-{facts['isa']}-{facts['threads']}t", facts)


def remember(prefix: str, facts: Mapping[str, Any]) -> str:
    """The fingerprint of a device with these facts, `prefix` before a digest of them all; `described` knows it from now on."""
    name = f"{prefix}-{digest(json.dumps(facts, sort_keys=True), 12)}"
    _described[name] = facts
    return name


def kind_of(fingerprint: str) -> str:
    """The type of the device that a fingerprint names: "cpu" or "cuda"."""
    return fingerprint.partition("-")[0]


def described(fingerprint: str) -> tuple[tuple[str, str], ...]:
    """The facts that a fingerprint of this process stands for, as text, sorted by name; nothing for another's."""
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
