"""Every setting of polytile in one table: name, type, default, environment variable, meaning.

`docs/options.md` is generated from this table. A value comes, strongest first, from `options={...}` of one compile, from
`polytile.options.override(...)`, from the environment variable, or from the default. A compiled function keeps the values under
which it was compiled.
"""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import functools
import importlib.metadata
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polytile.errors import OptionError

log = logging.getLogger("polytile")

PREFIX = "POLYTILE_"
"""Prefix of the environment variables that set options."""

KERNELS, PROGRAMS, NOTHING = "kernels", "programs", "nothing"
"""What the values of an option distinguish; see Option."""


@dataclass(frozen=True)
class Option:
    """One row of the table.

    name      lower case with underscores; the environment variable is POLYTILE_ and the name in capitals
    type      bool, int, float or str
    default   a value of that type
    doc       what it does, in a sentence or two; stands in docs/options.md
    choices   the values allowed, or, if `listed`, the words allowed in a comma-separated list. Empty means any
    group     the entry-point group of packages that bring choices: each entry is named as its choice is
    least     the smallest number allowed
    path      whether the value names a file or directory. A relative path counts from the process's directory when the option
              is given; in the environment, when it is first read
    keys      what two values keep apart (dispatch/conditions.py). KERNELS: kernels, with decisions of their own. PROGRAMS:
              programs alone, because the kernels' text differs anyhow. NOTHING: neither code nor choices depend on the value
    """

    name: str
    type: type
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    listed: bool = False
    group: str = ""
    least: float | None = None
    path: bool = False
    keys: str = KERNELS

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


TABLE: tuple[Option, ...] = (
    Option("cache_dir", str, "~/.cache/polytile",
        "Directory for everything that polytile keeps on disk. Empty means the default. If every user may write to the "
        "directory, polytile uses a subdirectory that belongs to you.", path=True),
    Option("debug", int, 0,
        "What polytile prints on stderr. 0: nothing. 1: each decision. 2: also the program around the kernels. 3: also the "
        "graph, and the IR after each pass. 4: also what each schedule makes of its loop (docs/looking-inside.md).", least=0),
    Option("persist", bool, True, "Keep measurements, programs, decisions and compiled kernels on disk for later processes."),
    Option("store", str, "",
        "Where measurements are kept: a file, or a server such as postgresql://user@host/database. Empty means a file in "
        "`cache_dir`.", path=True),
    Option("cxx", str, "", "C++ compiler. Empty means $CXX, then g++, then clang++."),
    Option("cutlass", str, "",
        "Directory of CUTLASS's headers. Empty means those of the package nvidia-cutlass, which `polytile[cutlass]` installs. "
        "Without headers there are no candidates of CUTLASS.", path=True),
    Option("cutlass_configs", int, 8,
        "Number of CUTLASS's configs that take part at any one size: those that are predicted to be fastest.", least=1),
    Option("nvcc", str, "", "nvcc that compiles CUTLASS's kernels. Empty means NVRTC, which takes half the time.", path=True),
    Option("compile_workers", int, 0,
        "Number of compilers that run at the same time. 0 means one for each core, fewer if memory is short.",
        least=0, keys=NOTHING),
    Option("tune", str, "auto",
        "How much is measured. auto: a shortlist at sizes without measurements. thorough: a shortlist, for longer, and "
        "again if the record leaves the choice in doubt. all: every candidate in every regime, which fills a store for "
        "replays. off: nothing; the store and the prediction decide.", choices=("auto", "thorough", "all", "off")),
    Option("shortlist", int, 3,
        "Largest number of candidates that are measured at sizes without measurements. It is doubled on a GPU, where candidates "
        "compile in parallel.", least=1),
    Option("configs", str, "tables",
        "Configs that products on a GPU try. tables: those in the tables of the device family. exhaustive: the family's whole "
        "space, which is hundreds of kernels, as `polytile tune --exhaustive` does (docs/configs.md).",
        choices=("tables", "exhaustive")),
    Option("convolutions", str, "library",
        "Convolutions on a GPU with windows larger than 1×1. library: eager's own calls. measured: the kernel cuDNN picks by "
        "a rule or by timing, on images as they are or converted, is chosen for each range of sizes. Each call then goes through "
        "Python, which pays where the GPU is the bottleneck (docs/convolutions.md).",
        choices=("library", "measured"), keys=PROGRAMS),
    Option("attention_dropout", str, "fused",
        "Dropout of written-out attention in training on a GPU. fused: one kernel each way draws eager's numbers and keeps no "
        "weights in memory (docs/attention.md). library: eager's kernel drops weights that are in memory.",
        choices=("fused", "library"), keys=PROGRAMS),
    Option("refine", float, 0.03,
        "Share of a kernel's run time that re-tuning its frequent sizes may use. 0: never re-tune.", least=0),
    Option("explore", float, 0.03,
        "With stall=never, the share of a kernel's run time that trying candidates on the program's own calls may cost. 0: "
        "candidates are measured in the background, apart from calls.", least=0),
    Option("gpu_cache", str, "warm",
        "State of the L2 cache when GPU candidates are timed. warm: calls run back to back. cold: the cache is flushed before "
        "each call.", choices=("warm", "cold")),
    Option("stall", str, "never",
        "What a call may wait for. never: nothing; ATen's operators, then the best kernels at hand, serve until better ones are "
        "compiled and measured in the background. compile: until the kernels that are predicted to be fastest are compiled; "
        "nothing is measured. tune: until kernels are compiled and measured at each new range of sizes.",
        choices=("never", "compile", "tune")),
    Option("builder", str, "process",
        "Where programs and kernels for a CPU are generated while calls go on (stall=never). process: in another process if "
        "possible, so that calls do not wait for Python's lock. thread: in a thread of this process, which takes less memory.",
        choices=("process", "thread"), keys=NOTHING),
    Option("interpret", bool, False,
        "Run loops on CPU tensors as generated Triton kernels under Triton's interpreter. Slow; for trying GPU kernels "
        "without a GPU.", keys=PROGRAMS),
    Option("problem_seconds", float, 0.0,
        "Seconds that measuring one problem may take, waiting for compilers included; then the best so far is used. 0: no "
        "limit.", least=0),
    Option("program_seconds", float, 0.0,
        "Seconds that a compiled program may spend on measuring, over all its kernels and sizes; then the best on record or "
        "the prediction decides. 0: no limit.", least=0),
    Option("progress", str, "auto",
        "What to show on stderr. auto: on a terminal, what a call or command waits for, once it has waited for a second; "
        "elsewhere nothing. lines: a line for each problem that was measured, in a log too. off: nothing.",
        choices=("off", "auto", "lines"), keys=NOTHING),
    Option("agree", str, "alone",
        "Who decides which kernels run. alone: each process. ranks: the ranks of a job of torch.distributed together, so that "
        "all run the same (docs/distributed.md).", choices=("alone", "ranks")),
    Option("agree_seconds", float, 60.0,
        "With agree=ranks, seconds that a rank waits for another's decision; then the prediction decides.", least=0,
        keys=NOTHING),
    Option("check_inputs", bool, False,
        "Check every floating-point input of every kernel for NaN and infinity, and raise InvalidInput with the names of the "
        "kernel and the argument. For debugging."),
    Option("isolation", str, "untrusted",
        "Which candidates first run in a worker process, where a crash, a hang or a lack of memory does no harm. untrusted: "
        "all but the library's, when their source is new on this machine. always: the same at every problem. never: none.",
        choices=("never", "untrusted", "always")),
    Option("trial_seconds", float, 10.0,
        "Seconds of processor time that a candidate's first run in a worker may take.", least=0),
    Option("learned", bool, True,
        "Let models that were trained on measurements choose where they are sure, and rank what is measured where they are "
        "not."),
    Option("collect", str, "",
        "Path of a store for `polytile learn`: at the first call of each range of sizes every candidate is measured into it. No "
        "choice depends on it. Empty: nothing is collected.", path=True, keys=NOTHING),
    Option("record_sizes", str, "",
        "Path of a file to which the sizes of calls are added, with their frequencies (docs/campaigns.md). Empty: nothing is "
        "recorded.", path=True, keys=NOTHING),
    Option("force", str, "",
        "Candidates to use instead of the chosen ones: comma-separated CANDIDATE or KERNEL=CANDIDATE patterns "
        "(docs/looking-inside.md)."),
    Option("plan", str, "", "Path of a plan file, which pins every decision (docs/commands.md).", path=True),
    Option("plan_missing", str, "warn",
        "What to do if the plan does not cover a call, or if the kernel has changed since. warn: choose as without a plan. "
        "error: raise NotInPlan.", choices=("warn", "error")),
    Option("metrics", str, "", "Path of a CSV file to which each decision adds a row.", path=True),
    Option("random", str, "eager",
        "Random numbers. eager: the same stream as in eager mode. philox: a faster counter-based generator with another "
        "stream.", choices=("eager", "philox"), keys=PROGRAMS),
    Option("front_door", str, "on",
        "How a call finds its compiled code. on: polytile evaluates Dynamo's guards itself, without Dynamo's evaluation of "
        "frames, where the result is the same (docs/calls.md). off: as torch.compile does. check: as torch.compile does, but "
        "FrontDoorError is raised where polytile would have run code whose guards do not hold.",
        choices=("on", "off", "check"), keys=NOTHING),
    Option("cuda_graphs", str, "off",
        "CUDA graphs. off: each kernel is launched by itself. auto: where it saves host time, repeated launches become a graph "
        "that is replayed, or updated for other sizes and addresses (docs/cuda-graphs.md).",
        choices=("off", "auto"), keys=NOTHING),
    Option("race_eager", bool, True,
        "Whether calls run eager's own code where it was measured to be faster than the compiled code with its overhead "
        "(docs/calls.md).", keys=NOTHING),
    Option("threads", int, 0, "Largest number of threads of a kernel on a CPU. 0 means torch.get_num_threads().", least=0),
    Option("packed_weights_mib", int, 4096,
        "Largest total size, in MiB, of the packed copies of constant weights. 0: no copies are made (docs/cpu-products.md).",
        least=0, keys=PROGRAMS),
    Option("on_failure", str, "library",
        "What to do with a graph or an operator that polytile fails to compile. library: run it as ATen calls and report it. "
        "raise: raise the error.", choices=("library", "raise"), keys=NOTHING),
    Option("verify_ir", bool, False, "Run the IR verifier after every pass. For debugging.", keys=NOTHING),
    Option("fuse", bool, True,
        "Fuse loops. False makes one kernel for each operator, which helps to find the operator at fault.", keys=PROGRAMS),
    Option(
        "wrapper",
        str,
        "cpp",
        "What the program around the kernels is written in. cpp: C, compiled in the background once a program has been called "
        "ten times; Python until then, and where there is no compiler. python: Python alone. fx: a torch.fx.GraphModule. "
        "Packages may register others (docs/extending.md).",
        keys=PROGRAMS,
    ),
    Option("sources", str, "",
        "Sources of candidates for products and attention, comma-separated; empty means all. Among candidates that are equally "
        "fast, one from the source named first is chosen; if no source is named, the best predicted. Packages may register "
        "others (docs/extending.md).",
        choices=("triton", "library", "cpp", "cublaslt", "cutlass"), listed=True, group="polytile.sources", keys=PROGRAMS),
)  # fmt: skip


@dataclass(frozen=True)
class Mode:
    """A mode of torch.compile: the options that it stands for, and a description."""

    name: str
    options: Mapping[str, Any]
    doc: str


_PATIENT = {"stall": "tune", "tune": "thorough", "shortlist": 6, "convolutions": "measured"}
_GRAPHS = {"cuda_graphs": "auto"}

MODES: tuple[Mode, ...] = (
    Mode("default", {}, "Sets no option."),
    Mode("reduce-overhead", _GRAPHS, "Uses CUDA graphs where they take the host less time."),
    Mode(
        "max-autotune-no-cudagraphs",
        _PATIENT,
        "Measures twice as many candidates, for longer, and again if the record leaves the choice in doubt, and chooses among "
        "cuDNN's convolutions. First calls take longer. `tune=all` measures every candidate.",
    ),
    Mode("max-autotune", _PATIENT, "The same as max-autotune-no-cudagraphs. For CUDA graphs give `cuda_graphs=auto` beside it."),
)
"""The modes of torch.compile. An option that is given beside a mode overrides it."""

BY_NAME: dict[str, Option] = {option.name: option for option in TABLE}
_OWN = frozenset(BY_NAME)

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")
_overrides: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("polytile_options", default=None)


def _named(name: str) -> Option:
    if name not in BY_NAME:
        near = difflib.get_close_matches(str(name), BY_NAME, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise OptionError(f"polytile has no option {name!r}{hint} Options: {', '.join(sorted(BY_NAME))}.")
    return BY_NAME[name]


def _of_type(kind: type, value: Any) -> Any:
    """`value` as one of that type. Text, as from the environment, is parsed. Raises ValueError."""
    if kind is bool and isinstance(value, str):
        low = value.strip().lower()
        if low not in _TRUE + _FALSE:
            raise ValueError(value)
        return low in _TRUE
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    if isinstance(value, str) or (kind is float and isinstance(value, int)):
        return kind(value)
    raise ValueError(value)


def _checked(option: Option, value: Any, origin: str) -> Any:
    """The checked value of an option. Raises OptionError, which names `origin`, for a value that the option does not take."""
    try:
        value = _of_type(option.type, value)
    except (TypeError, ValueError):
        raise OptionError(
            f"option {option.name!r} ({origin}) is {value!r}; it takes a value of type {option.type.__name__}."
        ) from None
    named = parts(value) if option.listed else (value,)
    none_named = option.listed and value == option.default == ""
    if option.choices and not none_named and not (named and set(named) <= set(option.choices)):
        choices = (*option.choices, *(name for name in _brought(option.group) if name not in option.choices))
        if not (named and set(named) <= set(choices)):
            many = " one or more" if option.listed else ""
            raise OptionError(
                f"option {option.name!r} ({origin}) is {value!r}; choose{many} from {', '.join(map(str, choices))}."
            )
    if option.least is not None and not value >= option.least:  # so NaN is refused too
        raise OptionError(f"option {option.name!r} ({origin}) is {value!r}; it takes {option.least:g} or more.")
    return _absolute(value) if option.path else value


def _brought(group: str) -> tuple[str, ...]:
    """The choices that installed packages add."""
    return tuple(entry.name for entry in importlib.metadata.entry_points(group=group)) if group else ()


def _absolute(named: str) -> str:
    """A path, wherever the process goes from here. It begins with ~ where the user has no home directory; a URL stays."""
    path = os.path.expanduser(named)
    return path if not path or path.startswith("~") or "://" in path else str(Path(path).absolute())


_first_asked = functools.cache(_absolute)


def parts(value: str) -> tuple[str, ...]:
    """The parts of a comma-separated value, in order."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def get(name: str) -> Any:
    """The value in force of an option.

    Parameters
    ----------
    name
        The option (docs/options.md).

    Returns
    -------
    The value, of the type that the option's row names: what `override` or a compile set, else the environment, else the default.

    Raises
    ------
    OptionError
        There is no such option, or its environment variable has a bad value.

    Examples
    --------
    >>> from polytile import options
    >>> options.get("refine")
    0.03
    """
    option = _named(name)
    overrides = _overrides.get()
    if overrides is not None and name in overrides:
        return overrides[name]
    if option.variable in os.environ:
        value = os.environ[option.variable]
        return _checked(option, _first_asked(value) if option.path else value, f"environment variable {option.variable}")
    return option.default


def cache_dir() -> Path:
    """The directory that the option `cache_dir` names, as an absolute path; it begins with ~ if the user has no home."""
    return Path(_absolute(get("cache_dir") or BY_NAME["cache_dir"].default))


def unknown_variables() -> dict[str, str]:
    """Environment variables that begin with POLYTILE_ and set no option, each with the nearest variable that does, or ""."""
    known = {option.variable: option for option in BY_NAME.values()}
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    return {name: next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.8)), "") for name in unknown}


def check_environment() -> None:
    """Reads every option before polytile is used. Raises OptionError for an environment variable with a bad value; warns once
    of each variable that sets no option."""
    for name in tuple(BY_NAME):
        get(name)
    for name, nearest in unknown_variables().items():
        _tell_of_unknown(name, f"did you mean {nearest}?" if nearest else "docs/options.md lists them.")


@functools.cache
def _tell_of_unknown(name: str, advice: str) -> None:
    log.warning("The environment sets %s, but polytile has no such option; %s", name, advice)


def check(values: Mapping[str, Any], origin: str = "options=") -> dict[str, Any]:
    """Checks names and values of options.

    Parameters
    ----------
    values
        Values by the options' names.
    origin
        Says in messages where the values came from.

    Returns
    -------
    The same, each value of its option's type.

    Raises
    ------
    OptionError
        There is no such option, or a value is none that it takes. The message names the option, or the nearest one.
    """
    if not isinstance(values, Mapping):
        raise OptionError(f"{origin} takes a mapping from names of options to their values; it was given {values!r}.")
    return {name: _checked(_named(name), value, origin) for name, value in values.items()}


def of_mode(name: str | None) -> Mapping[str, Any]:
    """The options that a mode of torch.compile stands for; None means "default". Raises OptionError for an unknown mode."""
    for mode in MODES:
        if mode.name == (name or "default"):
            return mode.options
    raise OptionError(f"polytile has no mode {name!r}; choose from {', '.join(mode.name for mode in MODES)}.")


@contextlib.contextmanager
def override(**values: Any) -> Iterator[None]:
    """Sets options within a `with` block, in this thread or task only.

    A function that is compiled in the block keeps these values; one that was compiled before keeps its own.

    Parameters
    ----------
    **values
        Values by the options' names.

    Raises
    ------
    OptionError
        As `check` does.

    Examples
    --------
    >>> from polytile import options
    >>> with options.override(refine=0.0):
    ...     options.get("refine")
    0.0
    """
    with restored(check(values, "override")):
        yield


@contextlib.contextmanager
def restored(values: Mapping[str, Any]) -> Iterator[None]:
    """Like `override`, for values that were checked before, including those of options that are no longer registered."""
    token = _overrides.set({**overridden(), **values})
    try:
        yield
    finally:
        _overrides.reset(token)


def overridden() -> dict[str, Any]:
    """The options that `override`, or the compile under way, has set in this context."""
    return dict(_overrides.get() or {})


overriding = _overrides.get
"""What `overridden` copies; None where nothing is set. A C function, for launches of autotuned kernels."""


def of_kernels() -> dict[str, Any]:
    """The values in force of all options whose `keys` is KERNELS."""
    return {name: get(name) for name, option in tuple(BY_NAME.items()) if option.keys == KERNELS}


def register(*options: Option) -> None:
    """Adds options of another package, which are then set as polytile's own are.

    Their values take part in the keys of kernels, measurements and plans as `keys` says. Equal options may come again.

    Parameters
    ----------
    *options
        The options; their names begin with the package's.

    Raises
    ------
    OptionError
        A name is taken, an option does not take its own default, or something is no Option.
    """
    for option in options:
        if not isinstance(option, Option):
            raise OptionError(f"polytile.options.register takes Option(name, type, default, doc); it was given {option!r}.")
        if BY_NAME.get(option.name, option) != option:
            raise OptionError(f"there is an option {option.name!r} already; put the package's name before it.")
        _checked(option, option.default, "its default")
        if option.keys not in (KERNELS, PROGRAMS, NOTHING):
            raise OptionError(f"option {option.name!r} has keys={option.keys!r}; choose from {KERNELS}, {PROGRAMS}, {NOTHING}.")
    BY_NAME.update((option.name, option) for option in options)


def allow(name: str, choice: str) -> None:
    """Adds a choice to an option of polytile's: a package has registered what it stands for."""
    if choice not in BY_NAME[name].choices:
        BY_NAME[name] = replace(BY_NAME[name], choices=(*BY_NAME[name].choices, choice))


def disallow(name: str, choice: str) -> None:
    """Takes back a choice that `allow` has added; polytile's own stay."""
    own = next((option.choices for option in TABLE if option.name == name), ())
    BY_NAME[name] = replace(BY_NAME[name], choices=tuple(c for c in BY_NAME[name].choices if c != choice or c in own))


def unregister(*names: str) -> None:
    """Removes registered options. Raises OptionError for polytile's own options and for unknown names."""
    for name in names:
        if _named(name).name in _OWN:
            raise OptionError(f"option {name!r} comes with polytile and stays.")
        del BY_NAME[name]


def registered() -> dict[str, str]:
    """Name and value, as text, of every registered option that is not at its default and whose `keys` is KERNELS."""
    added = [option for name, option in tuple(BY_NAME.items()) if name not in _OWN and option.keys == KERNELS]
    given = ((option, get(option.name)) for option in added)
    return {option.name: repr(value) for option, value in given if value != option.default}
