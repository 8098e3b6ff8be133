"""polytile: one compile, every shape at full speed.

`import polytile` makes the torch.compile backend "polytile" known. The public names:

compile         torch.compile with this backend, with hints, kernels compiled ahead, and options
kernel          makes one function of several kernels that you wrote
autotune        takes the place of triton.autotune: tunes the configs of a Triton kernel for ranges of sizes
explain         reports what became of every operator of a function, which kernels run, and why
record_sizes    records into a file which sizes calls have, and how often
profile         calls a function a few times, and says how long each of its kernels takes
options         every setting; `options.override(...)` sets some within a block
counters        a mapping of what was compiled, measured and found on record
wait            waits until the background has compiled and measured everything that calls have asked for
package         writes a compiled program to one file, which runs without a compiler, and without Python
load_package    loads such a file
save_plan       writes every decision made so far to a file, which the option `plan` follows
forget_weights  drops the packed copies of weights
reset           sets `counters` to zero and has `explain` forget the graphs compiled so far
PolytileError   base of every error that polytile raises on purpose; the others are in `polytile.errors`

Importing polytile imports neither torch nor the compiler; both come with the first use.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from polytile import options, waits
from polytile.compiler import register as _register
from polytile.compiler.plans import save_plan
from polytile.counters import counters
from polytile.errors import PolytileError
from polytile.version import __version__

if TYPE_CHECKING:
    from polytile.candidates.sources import register_source
    from polytile.compiler.explanation import explain
    from polytile.compiler.profiling import profile
    from polytile.compiler.programs import reset
    from polytile.dispatch.handwritten import Kernel
    from polytile.packages.load import load_package
    from polytile.packages.write import package
    from polytile.runtime.sizes_seen import record_sizes
    from polytile.runtime.weights import forget_weights

__all__ = [
    "PolytileError",
    "__version__",
    "autotune",
    "compile",
    "counters",
    "explain",
    "forget_weights",
    "kernel",
    "load_package",
    "options",
    "package",
    "profile",
    "record_sizes",
    "register_source",
    "reset",
    "save_plan",
    "wait",
]

_IMPORTED_WHEN_USED = {
    "explain": "compiler.explanation",
    "forget_weights": "runtime.weights",
    "load_package": "packages.load",
    "package": "packages.write",
    "profile": "compiler.profiling",
    "record_sizes": "runtime.sizes_seen",
    "register_source": "candidates.sources",
    "reset": "compiler.programs",
}
"""Public functions whose modules need torch, by the module that defines each."""


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_IMPORTED_WHEN_USED[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


Hints = Sequence[int] | Sequence[Mapping[str, int]] | Mapping[str, Sequence[int]] | str | os.PathLike[str] | None
"""Sizes: a list for every dynamic dimension, combinations of one size for each, a list for each, or the path of a file."""

Function = TypeVar("Function", bound=Callable[..., Any])
"""A function or a module: compiled, it has the type that it had."""


@overload
def compile(
    function: Function,
    *,
    hints: Hints = None,
    compile_ahead: Hints = None,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    dynamic: bool | None = True,
    fullgraph: bool = False,
    guards: str = "all",
) -> Function: ...


@overload
def compile(
    function: None = None,
    *,
    hints: Hints = None,
    compile_ahead: Hints = None,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    dynamic: bool | None = True,
    fullgraph: bool = False,
    guards: str = "all",
) -> Callable[[Function], Function]: ...


def compile(
    function: Callable[..., Any] | None = None,
    *,
    hints: Hints = None,
    compile_ahead: Hints = None,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    dynamic: bool | None = True,
    fullgraph: bool = False,
    guards: str = "all",
) -> Any:
    """`torch.compile` with polytile as the backend, and with all sizes symbolic from the first call on.

    Parameters
    ----------
    function
        A function or module of tensors of any dtype, on a CPU or a GPU. None makes a decorator.
    hints
        Sizes, in elements, for which kernels are measured before the first call returns. A list gives the sizes that every
        dynamic dimension takes in turn; a mapping from "s0", "s1", ... (dynamic sizes in argument order) gives a list for each,
        every combination of which is taken; a list of mappings, as [{"s0": 8, "s1": 128}], gives combinations themselves.
        0 and 1 are ignored, because PyTorch never makes them dynamic. The path of a file of recorded sizes (`record_sizes`)
        stands for the sizes that most calls had.
    compile_ahead
        Sizes in the same forms. Their kernels start compiling in the background at the first call; which of them run is decided
        later.
    options
        Values of `polytile.options` for this function alone, at compile time and later.
    mode
        As in torch.compile; "max-autotune" and the like stand for some options (docs/options.md).
    dynamic
        As in torch.compile. False compiles again for every shape.
    fullgraph
        As in torch.compile. True raises an error if the function is not one graph.
    guards
        What a call is compared with before compiled code runs (docs/calls.md). "all": everything that Dynamo read while it traced
        the function. "tensors": torch's modes, and the arguments with the items of lists, tuples and dicts among them: tensors by
        type, dtype, device, rank, strides, requires_grad and relations of sizes; numbers and other values as "all" does. You
        promise that globals, closures, modules, parameters and other attributes of objects stay as they were at the first call;
        their elements may change. "none": nothing. You promise also that each call has arguments of the kinds of the first one,
        under the same modes, and no size of 0 or 1 where that had none. A broken promise gives wrong results without an error.

    Returns
    -------
    The compiled function, or a decorator if `function` is None.

    Raises
    ------
    OptionError
        An option or mode is unknown, or a value is not one that it takes, `guards` included.
    HintError
        Hints are not sizes; or, at the first call, they name a size that the graph does not have.

    Examples
    --------
    >>> import torch, polytile
    >>> softmax = polytile.compile(lambda x: torch.softmax(x, -1))
    >>> [softmax(torch.randn(rows, 100)).shape[0] for rows in (2, 30, 700)]
    [2, 30, 700]
    >>> polytile.counters["graphs_compiled"]
    1
    """
    from polytile.compiler import early
    from polytile.runtime import collector

    if hints is None:
        early.begin(function, mode, options)
    with collector.at_rest_uncounted():  # modules stay
        from polytile.compiler import backend
    return backend.compile(function, hints, compile_ahead, options, mode, dynamic, fullgraph, guards)


def kernel(
    signature: str,
    *,
    reduction: Sequence[str] = (),
    hints: Sequence[Mapping[str, Any]] = (),
    make_args: Callable[..., Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., None]], Kernel]:
    """Makes one function of several implementations of a kernel. Decorates the reference, which must be right and may be slow.

    The reference and the implementations are called with the tensors, then with the sizes: `f(x, weight, y, M, N)`. They write
    the outputs and return nothing. The reference gets floating-point tensors in float64 as well as in their own dtype. If it has
    keyword-only parameters, all are called with these too. docs/kernels.md has examples.

    Parameters
    ----------
    signature
        The tensors and their sizes: "x[M, N], weight[N] -> y[M, N]" reads x and weight and writes all of y. "..." stands for any
        number of dimensions; as a size, it is the number of elements in them. Tensors may have any dtype and strides; all have to
        be on one device.
    reduction
        The sizes whose product is the number of terms that an output element sums. Longer sums may be further off.
    hints
        Sizes for which implementations are measured at the first call, each as {"M": 16, "N": 4096}, or by the shapes of tensors,
        {"x": (16, 4096)}.
    make_args
        A function of the sizes by name that returns tensors for them by name. Needed if random numbers (zeros for integers) are
        unsuitable.
    options
        Values of `polytile.options` for this kernel.

    Returns
    -------
    A decorator. It makes a Kernel of the reference: call it with the tensors, outputs included, add implementations with
    `Kernel.implementation`, and say how gradients flow with `Kernel.gradient`.

    Raises
    ------
    SignatureError
        The signature cannot be read, `reduction` names a size that it lacks, or the reference cannot be called with these
        arguments.
    HintError
        A hint lacks a size; or, at the first call, `make_args` returns tensors of other sizes or kinds.
    OptionError
        As in `compile`.
    """
    from polytile.dispatch import handwritten
    from polytile.dispatch import signature as signatures

    read = signatures.parsed(signature)
    return lambda reference: handwritten.Kernel(read, reference, reduction, options or {}, hints, make_args)


def autotune(
    configs: Sequence[Any],
    key: Sequence[str],
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    *,
    exact: Sequence[str] | bool = (),
    hints: Sequence[Mapping[str, int]] = (),
    make_args: Callable[..., Mapping[str, Any]] | None = None,
    reference: Callable[..., None] | None = None,
    reduction: Sequence[str | int] = (),
    search: Mapping[str, Sequence[Any]] | None = None,
    stall: str = "tune",
    plan: str = "",
    options: Mapping[str, Any] | None = None,
) -> Callable[[Any], Any]:
    """Takes the place of `triton.autotune`: the same arguments, in the same order, and the same kernels and Configs.

    Integers of `key` are sizes: calls whose sizes are in one range share a choice, which is kept for later processes. Configs are
    compared with each other before one is timed, on copies of what the kernel changes. docs/autotune.md says what else differs.

    Parameters
    ----------
    configs, key, prune_configs_by, reset_to_zero, restore_value, pre_hook, post_hook, do_bench
        As in `triton.autotune`.
    warmup, rep, use_cuda_graph, cache_results
        Accepted, but without effect: polytile times in its own way and always keeps results.
    exact
        Names in `key` for which each value has a choice of its own; True means all.
    hints
        Sizes, as [{"M": 16, "N": 4096}], that are tuned at the first call. They need `make_args`.
    make_args
        A function of the sizes by name that returns the kernel's arguments for them by name, tensors on the launch's device; and,
        as "grid", the grid, which `polytile tune` needs and hints take in place of the first call's.
    reference
        What is right: a function that writes the kernel's outputs. It is called with those of the kernel's arguments that its
        parameters name, floating-point tensors in float64 as well as in their own dtype.
    reduction
        Names of sizes, and numbers, whose product is the number of terms that an output element sums. Default: 4096 terms.
    search
        A space beside `configs`, as {"BLOCK": [64, 128, 256], "num_warps": [2, 4, 8]}: a sample of it is timed, then what lies
        beside the best.
    stall, plan, options
        Values of `polytile.options` for this kernel: what a call waits for ("tune" or "never"), a plan, any others.

    Returns
    -------
    A decorator for what `triton.jit` or `triton.heuristics` returns. It makes a kernel that is launched as kernel[grid](...).

    Raises
    ------
    SignatureError
        A name is none of the kernel's parameters, `search` is no mapping to lists, or `hints` come without `make_args`.
    OptionError
        As in `compile`.
    """
    from polytile.autotuner.declaration import Extras
    from polytile.autotuner.tuner import Autotuner

    given = {
        "configs": configs, "key": key, "prune_configs_by": prune_configs_by, "reset_to_zero": reset_to_zero,
        "restore_value": restore_value, "pre_hook": pre_hook, "post_hook": post_hook, "warmup": warmup, "rep": rep,
        "use_cuda_graph": use_cuda_graph, "do_bench": do_bench, "cache_results": cache_results,
    }  # fmt: skip
    own = {"stall": stall, **({"plan": plan} if plan else {}), **(options or {})}
    extras = Extras(exact, tuple(hints), reference, tuple(reduction), search, make_args, own)
    return lambda fn: Autotuner(fn, given, extras)


def wait(compiled: Callable[..., Any] | None = None, timeout: float | None = None) -> bool:
    """Waits until the background has generated, compiled and measured everything that calls so far have asked for.

    The next call of a compiled function then runs the kernels that were found to be fastest. While a thread waits, the background
    measures without resting. The option `stall` says what calls themselves wait for.

    Parameters
    ----------
    compiled
        The function of interest. The wait is for all compiled functions alike.
    timeout
        Seconds to wait at most; None means no limit.

    Returns
    -------
    Whether nothing is left to do.

    Examples
    --------
    >>> import polytile
    >>> polytile.wait(timeout=60)
    True
    """
    from polytile.dispatch import learning

    with waits.during("waiting for the background"):
        return learning.wait(timeout)


def _bar(wait: waits.Wait) -> waits.Shown:
    from polytile.report.progress import Bar  # brings rich, which few programs need

    return Bar(wait)


if options.get("interpret"):  # Triton decides when it is imported, which torch's tracer does
    os.environ.setdefault("TRITON_INTERPRET", "1")
waits.show_by(_bar)
_register.install()
