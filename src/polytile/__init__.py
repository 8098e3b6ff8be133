"""polytile: one compile, every shape at full speed.

`import polytile` makes the torch.compile backend "polytile" known. The public names:

compile         torch.compile with this backend, and more to say: hints, kernels compiled ahead, options
kernel          several kernels that you wrote behind one call
explain         what became of every operator of a function, which kernels run, and on what grounds
options         every setting; `options.override(...)` sets some within a block
counters        a mapping: what was compiled, measured and found on record so far
wait            until nothing is left to do in the background: the fastest kernels serve
save_plan       pins every decision made so far in a file, which the option `plan` follows
forget_weights  drops the packed copies of weights
reset           starts `counters` and `explain` anew
PolytileError   base of every error raised on purpose; the others are in `polytile.errors`

Importing polytile imports neither torch nor the compiler; both come with the first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from polytile import options
from polytile.compiler import register as _register
from polytile.compiler.plans import save_plan
from polytile.counters import counters
from polytile.errors import PolytileError
from polytile.version import __version__

if TYPE_CHECKING:
    from polytile.compiler.explanation import Explanation
    from polytile.dispatch.handwritten import Kernel

__all__ = [
    "PolytileError",
    "__version__",
    "compile",
    "counters",
    "explain",
    "forget_weights",
    "kernel",
    "options",
    "reset",
    "save_plan",
    "wait",
]


Function = TypeVar("Function", bound=Callable[..., Any])
"""A function or a module: compiled, it has the type that it had."""


@overload
def compile(
    function: Function,
    *,
    hints: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    compile_ahead: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    dynamic: bool | None = True,
    fullgraph: bool = False,
) -> Function: ...


@overload
def compile(
    function: None = None,
    *,
    hints: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    compile_ahead: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    dynamic: bool | None = True,
    fullgraph: bool = False,
) -> Callable[[Function], Function]: ...


def compile(
    function: Callable[..., Any] | None = None,
    *,
    hints: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    compile_ahead: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    dynamic: bool | None = True,
    fullgraph: bool = False,
) -> Any:
    """`torch.compile` with polytile as the backend and sizes symbolic from the start; also usable as a decorator.

    hints          sizes for which kernels are chosen and compiled before the first call needs them: a list that every dynamic
                   size takes in turn, or a mapping from "s0", "s1", ... (dynamic sizes in argument order) to lists. 0 and 1 are
                   never dynamic and passed over
    compile_ahead  sizes, in the same forms, whose kernels start compiling in the background at once; which of them run is decided
                   by the first call, which finds them made
    options        rows of `polytile.options`, which hold for this function alone, at compile time and later
    mode           as in torch.compile: "max-autotune" and the like, each of which stands for some options (docs/options.md)
    dynamic        as in torch.compile; with False every new shape compiles anew
    fullgraph      as in torch.compile: an error where the function is not one graph

    Returns the compiled function; without `function`, a decorator. Raises OptionError for an unknown option or mode or a bad
    value, HintError for hints that are no sizes, and, at the first call, for one that names no size.
    """
    from polytile.compiler import backend

    return backend.compile(
        function,
        hints=hints,
        compile_ahead=compile_ahead,
        options=options,
        mode=mode,
        dynamic=dynamic,
        fullgraph=fullgraph,
    )


def kernel(
    signature: str, *, reduction: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., None]], Kernel]:
    """Several implementations of one kernel behind one call; decorates the reference, which has to be right and may be slow.

    signature  names the tensors and their sizes: "x[M, N], weight[N] -> y[M, N]" reads x and weight and writes y
    reduction  names the sizes whose product is the number of terms that an output element sums
    options    rows of `polytile.options`, which hold for this kernel

    Reference and implementations are called with the tensors, then the sizes: f(x, weight, y, M, N); floating-point tensors reach
    the reference in float64 as well as in their own type. docs/kernels.md has examples. Raises SignatureError for a signature
    that cannot be read, a size that it lacks and a function that does not take it, OptionError as `compile` does.
    """
    from polytile.dispatch import handwritten
    from polytile.dispatch import signature as signatures

    read = signatures.parsed(signature)
    return lambda reference: handwritten.Kernel(read, reference, reduction, options or {})


def wait(compiled: Callable[..., Any] | None = None, timeout: float | None = None) -> bool:
    """Waits until everything has been generated, compiled and measured that calls so far have asked for (option `stall`), at most
    `timeout` seconds; returns whether that is so. The next call of `compiled`, or of whatever was compiled, runs the kernels that
    were found to be fastest. Measuring goes on at full speed meanwhile, for all compiled functions alike."""
    from polytile.dispatch import learning

    return learning.wait(timeout)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Runs `function(*args, **kwargs)` once; returns what became of every operator, and which kernels ran and why.

    Printed, the Explanation is a report; `.operators`, `.decisions`, `.weights` and `.sources` are the same as data. A function
    that torch.compile or polytile.compile made is called as it is, under the gradient mode in which it has run; any other is
    compiled for this one call.
    """
    from polytile.compiler.explanation import explain as run

    return run(function, *args, **kwargs)


def reset() -> None:
    """Starts `counters` at zero and forgets, for `explain`, which graphs were compiled; kernels, measurements and compiled
    functions stay."""
    from polytile.compiler import programs as compiler

    compiler.reset()


def forget_weights() -> None:
    """Drops every packed copy of a weight; the next calls make new ones. Needed only after a write that PyTorch does not count
    and that changed a small part of a weight (docs/cpu-products.md)."""
    from polytile.runtime import weights

    weights.forget()


if options.get("interpret"):  # Triton decides when it is imported, which torch's tracer does
    os.environ.setdefault("TRITON_INTERPRET", "1")
_register.install()
