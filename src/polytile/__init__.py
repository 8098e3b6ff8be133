"""polytile: one compile, every shape at full speed.

`import polytile` registers the torch.compile backend "polytile". `polytile.compile(f, hints=..., options=...)` is the same with
more to say; `polytile.explain(f, *args)` shows what became of every operator; `polytile.counters` counts what was done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polytile import options
from polytile.counters import counters
from polytile.errors import PolytileError
from polytile.plans import save_plan

if TYPE_CHECKING:
    from polytile.explanation import Explanation

__version__ = "0.1.0"
__all__ = ["PolytileError", "compile", "counters", "explain", "options", "reset", "save_plan"]


def compile(function: Any = None, *, hints: Any = None, options: Any = None, dynamic: bool | None = True, fullgraph: bool = False) -> Any:
    """`torch.compile` with the polytile backend; see `polytile.frontend.backend.compile`."""
    from polytile.frontend import backend

    return backend.compile(function, hints=hints, options=options, dynamic=dynamic, fullgraph=fullgraph)


def explain(function: Any, *args: Any, **kwargs: Any) -> Explanation:
    """What became of every operator of `function(*args, **kwargs)` and which kernels run; see `polytile.explanation.explain`."""
    from polytile.explanation import explain as run

    return run(function, *args, **kwargs)


def reset() -> None:
    """Starts the counters at zero and forgets which graphs were compiled; kernels, measurements and compiled functions stay."""
    from polytile import compiler

    compiler.reset()


def _backend(graph: Any, example_inputs: Any, **keywords: Any) -> Any:
    """The backend as Dynamo's registry holds it; the compiler is imported when the first graph arrives."""
    from polytile.frontend import backend

    return backend.polytile(graph, example_inputs, **keywords)


def _register() -> None:
    from torch._dynamo.backends import registry

    if "polytile" not in registry._COMPILER_FNS:
        registry.register_backend(_backend, name="polytile")


_register()
