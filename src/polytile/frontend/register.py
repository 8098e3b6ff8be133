"""Makes `torch.compile(..., backend="polytile")` find the backend, without importing the tracer before it is needed.

An installed polytile has an entry point, by which torch finds it unasked. From a source tree alone there is none. So
`import polytile` puts the backend into torch's registry: at once where torch's tracer has been imported, else the
moment it is, as torch.compile does when it first meets a backend's name. The tracer takes two seconds to import; a
program that imports polytile and never compiles does not pay for it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

NAME = "polytile"
REGISTRY = "torch._dynamo.backends.registry"


def install() -> None:
    """Registers the backend, now or when torch's registry is imported. Calling it again changes nothing."""
    registry = sys.modules.get(REGISTRY)
    if registry is not None:
        _register(registry)
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def _register(registry: ModuleType) -> None:
    """Not where torch has found the entry point: it registers that itself, and a name only once."""
    if NAME not in registry._COMPILER_FNS and registry._BACKENDS.get(NAME) is None:
        registry.register_backend(_backend, name=NAME)


def _backend(graph: Any, example_inputs: Any, **keywords: Any) -> Callable[..., Any]:
    """What the registry holds: the compiler itself is imported when the first graph arrives."""
    from polytile.frontend import backend

    return backend.polytile(graph, example_inputs, **keywords)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds nothing itself; when the registry is imported, has the backend registered right after, and goes."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != REGISTRY:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _register(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


__all__ = ["install"]
