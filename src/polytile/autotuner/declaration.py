"""The arguments of `polytile.autotune`, and checks of them against the kernel."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from polytile.autotuner.effects import innermost, python_function
from polytile.errors import SignatureError

log = logging.getLogger("polytile.dispatch")


@dataclasses.dataclass(frozen=True)
class Extras:
    """The arguments of `polytile.autotune` that `triton.autotune` lacks. Its docstring describes them."""

    exact: Sequence[str] | bool = ()
    hints: Sequence[Mapping[str, int]] = ()
    reference: Callable[..., None] | None = None
    reduction: Sequence[str | int] = ()
    search: Mapping[str, Sequence[Any]] | None = None
    make_args: Callable[..., Mapping[str, Any]] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


PRUNING = ("early_config_prune", "perf_model", "top_k")
"""What Triton reads of `prune_configs_by`. It passes over other names, so that nothing is pruned."""

LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""What a config sets beside the kernel's parameters."""


def check(fn: Any, given: Mapping[str, Any], extras: Extras) -> None:
    """Check the arguments of `polytile.autotune` before Triton does, as not all of its releases check them.

    Raises
    ------
    SignatureError
        If `fn` is not a Triton kernel, a config is not a triton.Config, a name is not a parameter of the kernel, or hints come
        without `make_args`.
    """
    function = python_function(fn)
    if not hasattr(fn, "arg_names") or function is None:
        name = getattr(fn, "__name__", repr(fn))
        raise SignatureError(f"polytile.autotune decorates Triton kernels, and {name} is none: put @triton.jit between the two.")
    kernel, known = repr(function.__name__), ", ".join(fn.arg_names)
    _check_kinds(kernel, given, extras)
    for config in given["configs"] or ():
        if not hasattr(config, "all_kwargs"):
            raise SignatureError(
                f"configs= of kernel {kernel} takes a list of triton.Config, and has {config!r}; write "
                'triton.Config({"BLOCK": 64}, num_warps=4).'
            )
    if lost := sorted({*(extras.search or ())} - {*fn.arg_names, *LAUNCH}):
        raise SignatureError(
            f"search= of kernel {kernel} names {', '.join(map(repr, lost))}; the kernel has {known}, and a launch "
            f"{', '.join(LAUNCH)}."
        )
    if extras.reference is not None and (lost := [name for name in _needed(extras.reference) if name not in fn.arg_names]):
        raise SignatureError(
            f"reference= of kernel {kernel} is called with those of the kernel's arguments that its parameters name, "
            f"and names {', '.join(map(repr, lost))}; the kernel has {known}."
        )
    exact = () if isinstance(extras.exact, bool) else extras.exact
    for word, names in {"reset_to_zero": given["reset_to_zero"], "restore_value": given["restore_value"], "exact": exact}.items():
        if isinstance(names, str) or (lost := [name for name in names or () if name not in fn.arg_names]):
            raise SignatureError(
                f"{word}= of kernel {kernel} takes a list of its parameters' names, and has "
                f"{names if isinstance(names, str) else ', '.join(lost)!r}; the kernel has {known}."
            )
    if extras.hints and extras.make_args is None:
        raise SignatureError(
            f"hints= of kernel {kernel} needs make_args=, a function that makes the kernel's arguments for the sizes "
            "that it is given by name."
        )


def _check_kinds(kernel: str, given: Mapping[str, Any], extras: Extras) -> None:
    """Raise SignatureError if an argument is not of the kind that it has to be."""
    everything = {**given, **{field.name: getattr(extras, field.name) for field in dataclasses.fields(extras)}}
    for word in ("do_bench", "pre_hook", "post_hook", "reference", "make_args"):
        if everything[word] is not None and not callable(everything[word]):
            raise SignatureError(f"{word}= of kernel {kernel} takes a function, and was given {everything[word]!r}.")
    for word in ("configs", "key"):
        names = everything[word]
        if names is not None and (isinstance(names, str) or not isinstance(names, Iterable)):
            kind = "names of its parameters" if word == "key" else "triton.Config"
            raise SignatureError(f"{word}= of kernel {kernel} takes a list of {kind}, and was given {names!r}.")
    pruning = everything["prune_configs_by"] or {}
    if lost := sorted(pruning.keys() - {*PRUNING}):
        names = ", ".join(map(repr, lost))
        raise SignatureError(f"prune_configs_by= of kernel {kernel} takes {', '.join(map(repr, PRUNING))}, and has {names}.")


def known_keys(fn: Any, key: Sequence[str]) -> list[str]:
    """The names in `key` that are parameters of the kernel. Others are logged, as not all releases of Triton reject them."""
    lost = [name for name in key if name not in fn.arg_names]
    if lost:
        log.warning(
            "key= of kernel %r names %s, which is no parameter and is passed over; the kernel has %s.",
            innermost(fn).__name__, ", ".join(map(repr, lost)), ", ".join(fn.arg_names),
        )  # fmt: skip
    return [name for name in key if name not in lost]


def _needed(function: Callable[..., Any]) -> list[str]:
    """The parameters of a function without a default."""
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [n for n, one in inspect.signature(function).parameters.items() if one.default is one.empty and one.kind not in kinds]
