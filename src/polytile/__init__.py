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
    from pathlib import Path

    from polytile.candidates.sources import Source
    from polytile.compiler.explanation import Explanation
    from polytile.compiler.profiling import Profile
    from polytile.dispatch.handwritten import Kernel
    from polytile.packages.load import Package
    from polytile.runtime.sizes_seen import Recording

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
        As in torch.compile. False compiles anew for every shape.
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
    with collector.at_rest():
        from polytile.compiler import backend
    return backend.compile(
        function,
        hints=hints,
        compile_ahead=compile_ahead,
        options=options,
        mode=mode,
        dynamic=dynamic,
        fullgraph=fullgraph,
        guards=guards,
    )


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
        A function of the sizes by name that returns the tensors for them by name, where random numbers and, for integers, zeros
        will not do.
    options
        Values of `polytile.options` for this kernel.

    Returns
    -------
    A decorator. It makes a Kernel of the reference: call it with the tensors, outputs included, add implementations with
    `Kernel.implementation`, and say how gradients flow with `Kernel.gradient`.

    Raises
    ------
    SignatureError
        The signature cannot be read, `reduction` names a size that it lacks, or the reference cannot be called so.
    HintError
        A hint does not say all sizes; or, at the first call, `make_args` makes tensors of other sizes or kinds.
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


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Calls `function(*args, **kwargs)` once, and reports what became of every operator, which kernels run, and why.

    A function that torch.compile or polytile.compile made is called as it is, under the gradient mode in which it has run. Any
    other function is compiled for this call.

    Returns
    -------
    An Explanation. Printed, it is a report; `.operators`, `.decisions`, `.weights`, `.failures` and `.sources` hold the same as
    data. Times are in seconds.
    """
    from polytile.compiler.explanation import explain as run

    return run(function, *args, **kwargs)


def profile(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Profile:
    """Calls `function(*args, **kwargs)` about twenty times, and reports the time of each of its kernels and ATen operators.

    Half of the calls run as they are, half under torch's profiler. What a call changes in place changes at every call.

    Returns
    -------
    A Profile. Printed, it is a table in microseconds; `.wall` and `.lines` hold the same in seconds.
    """
    from polytile.compiler.profiling import profile as run

    return run(function, args, kwargs)


def record_sizes(path: str | os.PathLike[str]) -> Recording:
    """Records which sizes calls of compiled functions have from now on, and how often, in every thread of this process.

    It looks at a sample of the calls, which takes less than 0.1 % of the program's time. `hints=`, `polytile tune --sizes` and
    campaigns read the file (docs/campaigns.md).

    Parameters
    ----------
    path
        The file. If it is there, the counts are added to those in it; several processes may add to one file.

    Returns
    -------
    A Recording. It ends with its `with` block, with `.stop()`, or with the process; `.write()` writes what was seen so far.

    Raises
    ------
    SizesError
        Sizes are being recorded already, or the file is something else or cannot be written.
    """
    from polytile.runtime import sizes_seen

    return sizes_seen.record(path)


def package(
    model: Callable[..., Any],
    args: Sequence[Any],
    path: str | Path,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    hints: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    weights_apart: bool = False,
    folder: bool = False,
    check: bool = True,
    architectures: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a model to one file that runs on a CPU or an NVIDIA GPU without a compiler and tracing, and from C++ without Python.

    docs/packages.md says what can be packaged. Within the bounds of `dynamic_shapes` the kernels run that measurements or
    predictions show to be the fastest. At other sizes a kernel runs that is right at all sizes.

    Parameters
    ----------
    model
        A function or module, what `polytile.compile` made of one, or an exported program (torch.export), whose `args` may be
        empty.
    args, kwargs
        Example inputs. Sizes of 0 and 1 among them are taken to be constants.
    path
        The file to write; an earlier one is replaced.
    dynamic_shapes
        As in torch.export.export. None lets every size vary that can.
    hints
        Sizes, in elements, for which kernels are measured now, as in `compile`.
    weights_apart
        Whether the weights are a file of their own, `path` with ".safetensors" behind it.
    folder
        Whether to write a folder of files in place of one file.
    check
        Whether to call the package on the example inputs, and to compare its results with eager's.
    architectures
        Compute capabilities (80 for 8.0) of other NVIDIA GPUs than this one on which a model on a GPU is to run too.
    options
        Values of `polytile.options` while kernels are generated and chosen.

    Returns
    -------
    `path`.

    Raises
    ------
    PackageError
        The model has no form as a package, the file cannot be written, or its results are not eager's.
    OptionError, HintError, CompilerMissing
        As in `compile`; a compiler is needed.

    Examples
    --------
    >>> import os, tempfile, torch, polytile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = polytile.package(torch.nn.Softmax(-1), (torch.randn(4, 100),), os.path.join(folder.name, "softmax.ptp"))
    >>> run = polytile.load_package(path)
    >>> run(torch.zeros(2, 100)).sum(-1)
    tensor([1., 1.])
    """
    from polytile.packages import write

    with waits.during(f"packaging {path}"):
        return write.package(
            model, args, path, kwargs=kwargs, dynamic_shapes=dynamic_shapes, hints=hints, weights_apart=weights_apart,
            folder=folder, check=check, architectures=architectures, options=options,
        )  # fmt: skip


def load_package(path: str | Path, *, verify: bool = False) -> Package:
    """Loads what `package` has written. Needs torch and no compiler.

    Parameters
    ----------
    path
        The file or folder.
    verify
        Whether to compare the weights, too, with their digest, which reads all of them. Everything else is always compared.

    Returns
    -------
    A Package, called as the model was.

    Raises
    ------
    PackageError
        There is no package, it is damaged, or it was made for another processor or another version of polytile.
    """
    from polytile.packages import load

    return load.load_package(path, verify=verify)


def reset() -> None:
    """Sets `counters` to zero, and has `explain` forget which graphs were compiled.

    Kernels, measurements and compiled functions stay.
    """
    from polytile.compiler import programs as compiler

    compiler.reset()


def register_source(source: Source) -> None:
    """Adds a source of candidates for products and attention, after polytile's own.

    Programs that are compiled from now on ask it. The option `sources` then takes its name. docs/extending.md has an example.

    Parameters
    ----------
    source
        An instance of a subclass of `polytile.candidates.sources.Source`. One of the same class again takes its place.

    Raises
    ------
    SourceError
        For anything else, and for a name that another source has, or that is no word.
    """
    from polytile.candidates import sources

    sources.register(source)


def forget_weights() -> None:
    """Drops every packed copy of a weight; the next calls make new ones.

    Needed only after a write to a small part of a weight that PyTorch does not count, such as `weight.data[0, 0] = 1`
    (docs/cpu-products.md).
    """
    from polytile.runtime import weights

    weights.forget()


def _bar(wait: waits.Wait) -> waits.Shown:
    from polytile.report.progress import Bar  # brings rich, which few programs need

    return Bar(wait)


if options.get("interpret"):  # Triton decides when it is imported, which torch's tracer does
    os.environ.setdefault("TRITON_INTERPRET", "1")
waits.show_by(_bar)
_register.install()
