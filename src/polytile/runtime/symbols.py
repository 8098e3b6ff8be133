"""Addresses of functions in shared libraries, for C code that calls them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any


def addresses(library: ctypes.CDLL, names: Iterable[str]) -> list[int]:
    """Addresses of a library's functions. Raises AttributeError if one is missing."""
    return [address_of(getattr(library, name)) for name in names]


def address_of(function: Any) -> int:
    """Address of a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0
