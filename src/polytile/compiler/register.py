"""Makes `torch.compile(..., backend="polytile")` find the backend, without importing the tracer before it is needed.

An installed polytile has an entry point, through which torch finds it. A source tree has none. So `import polytile` puts the
backend into torch's registry: at once where torch's tracer has been imported, else the moment it is, as torch.compile does when
it first meets a backend's name. The tracer takes two seconds to import; a program that imports polytile and never compiles does
not pay for it.
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
TRACER = "torch._dynamo.symbolic_convert"


def install() -> None:
    """Registers the backend, now or when torch's registry is imported, and says to the tracer what it may take for constant
    (floats.py). Calling it again changes nothing."""
    for name, act in _ACTIONS.items():
        if name in sys.modules:
            act(sys.modules[name])
    waiting = {name: act for name, act in _ACTIONS.items() if name not in sys.modules}
    if waiting and not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported(waiting))


def _settle(tracer: ModuleType) -> None:
    """Where the tracer has been imported to its end."""
    if hasattr(tracer, "TensorifyState"):
        from polytile.frontend import floats

        floats.settle_ahead()


def _register(registry: ModuleType) -> None:
    """Not where torch has found the entry point: it registers that itself, and a name only once."""
    if NAME not in registry._COMPILER_FNS and registry._BACKENDS.get(NAME) is None:
        registry.register_backend(_backend, name=NAME)


def _backend(graph: Any, example_inputs: Any, **keywords: Any) -> Callable[..., Any]:
    """What the registry holds: the compiler itself is imported when the first graph arrives."""
    from polytile.compiler import backend

    return backend.polytile(graph, example_inputs, **keywords)


_ACTIONS: dict[str, Callable[[ModuleType], None]] = {REGISTRY: _register, TRACER: _settle}
"""What is done with modules of torch's, once they are imported."""


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds nothing itself; when a module that it waits for is imported, it acts on that right after. It goes with the last."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self.waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        act = self.waiting.pop(name, None)
        if act is None:
            return None
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                act(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
