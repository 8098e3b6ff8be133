"""Handles, by which another process finds a candidate's kernel to try it there first."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polytile.runtime.cuda.launch import Launch, Scratch
from polytile.runtime.cuda.products import Product

if TYPE_CHECKING:
    from polytile.candidates.inner_kernel import InnerKernel


@dataclass(frozen=True)
class NativeHandle:
    """How another process gets a NativeEntry: the C function `symbol` of the shared object at `path`.

    With `bind`, (function, number, another path, symbol there), the kernel is in two objects: `function` of the first is to
    be called with the number and the address of the symbol in the other.
    """

    path: str
    symbol: str
    threads: int = 1
    bind: tuple[str, int, str, str] | None = None


@dataclass(frozen=True)
class PythonHandle:
    """How another process gets a PythonEntry: the attribute `name` ("f", "Kernel.run") of `module`, which is the name of
    a module or the path of a .py file.

    Without `arguments` the attribute is the callable itself; with them (values that JSON can hold) it is called with
    them and returns the callable.
    """

    module: str
    name: str
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class MachineCode:
    """The kernel `symbol` of a cubin."""

    image: bytes = field(repr=False)
    symbol: str


@dataclass(frozen=True)
class DeviceHandle:
    """How another process runs a kernel on a GPU: its launches and their scratch buffers."""

    launches: tuple[Launch[MachineCode], ...]
    scratch: tuple[Scratch, ...] = ()


@dataclass(frozen=True)
class ProductHandle:
    """A product by cuBLASLt: proposal number `rank` of its heuristic, elsewhere than at the sizes `fastest_at` the first. With
    `then` it goes to memory with elements of this many bytes, which that kernel reads in the place of A and B; its integers
    follow the product's."""

    product: Product
    rank: int = 0
    fastest_at: Mapping[str, int] = field(default_factory=dict, hash=False)
    then: InnerKernel | None = None
    element_bytes: int = 0


Handle = NativeHandle | PythonHandle | DeviceHandle
Portable = NativeHandle | DeviceHandle | ProductHandle
"""The handles of kernels that run without Python and torch."""


def handle_of_function(function: Callable[..., Any]) -> PythonHandle | None:
    """The handle of a function or class attribute that a module holds under its own name. None for lambdas, closures and
    whatever else another process could not find again."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    held: Any = sys.modules.get(module or "")
    for part in name.split("."):
        held = getattr(held, part, None)
    if held is not function:
        return None
    if module != "__main__":
        return PythonHandle(str(module), name)
    try:
        path = inspect.getsourcefile(function)
    except TypeError:
        return None
    return PythonHandle(path, name) if path and path.endswith(".py") else None


def importable_name(function: Callable[..., Any]) -> str:
    """"module.name" of a function; for what the main script defines, with the name that the script has where it is imported, so
    that a command that imports it and the script itself mean the same kernel."""
    module = str(function.__module__)
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(path).stem if path else module
    return f"{module}.{function.__qualname__}"


def with_keywords(handle: PythonHandle, keywords: Mapping[str, Any]) -> PythonHandle:
    """The handle of the same callable with some keyword arguments given (values that JSON can hold)."""
    arguments = {"module": handle.module, "name": handle.name, "keywords": dict(keywords)}
    return PythonHandle(__name__, bound.__qualname__, arguments)


def bound(module: str, name: str, keywords: Mapping[str, Any]) -> Callable[..., Any]:
    """What a handle `with_keywords` stands for, where it is found."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return functools.partial(value, **keywords)
