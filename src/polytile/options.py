"""Every setting of polytile in one table: name, type, default, environment variable, meaning.

`docs/options.md` is generated from this table. Values come, strongest first, from `options={...}` of one compile, from
`polytile.options.override(...)`, from the environment, and from the default.
"""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import functools
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytile.errors import OptionError

log = logging.getLogger("polytile")

PREFIX = "POLYTILE_"
"""How the variables of the environment begin that give options values."""

KERNELS, PROGRAMS, NOTHING = "kernels", "programs", "nothing"
"""What an option's values keep apart; see Option."""


@dataclass(frozen=True)
class Option:
    """One row of the table.

    choices   the values that are allowed; with `listed`, the words allowed in a comma-separated list. Empty: any
    least     the smallest number that is allowed
    path      the value names a file or directory. A relative one counts from the process's directory at the moment when it is
              given, or, in the environment, first asked for
    keys      what two values of it keep apart (dispatch/conditions.py): KERNELS, each with decisions of its own; PROGRAMS
              alone, as the text of whatever the value changes is another; or NOTHING, as neither code nor choices depend on it
    """

    name: str
    type: type
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    listed: bool = False
    least: float | None = None
    path: bool = False
    keys: str = KERNELS

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


TABLE: tuple[Option, ...] = (
    Option(
        "cache_dir",
        str,
        "~/.cache/polytile",
        "Directory of everything polytile keeps on disk; empty: the default. In one that every user may write to, files are kept "
        "in a directory of the user's own.",
        path=True,
    ),
    Option(
        "debug",
        int,
        0,
        "1 prints decisions, 2 also the program around the kernels, 3 also the graph and the IR between passes.",
        least=0,
    ),
    Option("persist", bool, True, "Keep measurements and compiled kernels on disk for other processes."),
    Option(
        "store",
        str,
        "",
        "Where measurements are kept: a file, or a server as postgresql://user@host/database; empty: a file in cache_dir.",
        path=True,
    ),
    Option("cxx", str, "", "C++ compiler to use; empty: $CXX, then g++, then clang++."),
    Option(
        "compile_workers",
        int,
        0,
        "Compilers that run at the same time; 0: one for each core, fewer where memory is short.",
        least=0,
        keys=NOTHING,
    ),
    Option(
        "tune",
        str,
        "auto",
        "auto: measure a shortlist where nothing is known; thorough: the same, for longer, and again where what is known does "
        "not settle the choice; all: measure every candidate in every regime, which fills a store for replays and for "
        "learning; off: prior and store only.",
        choices=("auto", "thorough", "all", "off"),
    ),
    Option("shortlist", int, 3, "Most candidates that are measured at sizes for which nothing is known.", least=1),
    Option(
        "gpu_shortlist", int, 6, "The same for kernels on a GPU, where candidates compile in parallel processes.", least=1
    ),
    Option(
        "configs",
        str,
        "tables",
        "Which configs a product on a GPU may take: those of its device family's tables, or exhaustive: the family's whole space "
        "besides, hundreds of kernels, for `polytile tune --exhaustive` (docs/configs.md).",
        choices=("tables", "exhaustive"),
    ),
    Option(
        "expected_calls",
        int,
        10_000,
        "Calls of a kernel at one size within which compiling another candidate for it has to pay off.",
        least=0,
    ),
    Option(
        "refine",
        float,
        0.03,
        "Part of the time spent in a kernel at sizes that come often, in a regime that others have decided, that measuring its "
        "candidates at these very sizes may take; 0: never.",
        least=0,
    ),
    Option(
        "gpu_cache",
        str,
        "warm",
        "warm: GPU candidates are timed back to back, inputs in the L2 cache where they fit; cold: flushed before each call.",
        choices=("warm", "cold"),
    ),
    Option(
        "stall",
        str,
        "never",
        "What a call may wait for. never: nothing; ATen's operators, then the best kernels at hand, serve until better ones are "
        "compiled and measured in the background. compile: until the kernels that are predicted to be fastest are compiled; "
        "nothing is measured. tune: until kernels are compiled and measured at each new range of sizes.",
        choices=("never", "compile", "tune"),
    ),
    Option(
        "interpret",
        bool,
        False,
        "Run loops on CPU tensors as generated Triton kernels under Triton's interpreter: slow, to try them without a GPU.",
        keys=PROGRAMS,
    ),
    Option(
        "problem_seconds",
        float,
        0.0,
        "Seconds that measuring one problem may take, compilers waited for included; 0: no limit. What is found by then is used.",
        least=0,
    ),
    Option(
        "program_seconds",
        float,
        0.0,
        "Seconds that a compiled program may spend on measuring, all its kernels and sizes together; 0: no limit.",
        least=0,
    ),
    Option(
        "progress",
        str,
        "off",
        "Show what is being measured, on stderr. auto: a bar on a terminal, a line for each problem elsewhere; lines: lines "
        "everywhere.",
        choices=("off", "auto", "lines"),
        keys=NOTHING,
    ),
    Option("noise_band", float, 0.02, "Relative time difference within which candidates count as equal.", least=0),
    Option("gpu_noise_band", float, 0.01, "The same on a GPU, whose times vary by a quarter as much.", least=0),
    Option("check_accuracy", bool, True, "Compare each candidate with the reference before it is timed."),
    Option(
        "check_inputs",
        bool,
        False,
        "Check every floating-point input of each kernel for NaN and infinity.",
    ),
    Option(
        "isolation",
        str,
        "untrusted",
        "Candidates that run in a worker process first, where a crash, a hang or a lack of memory does no harm. untrusted: "
        "all but the library's, the first time that their source is seen; always: these, at every problem; never: none.",
        choices=("never", "untrusted", "always"),
    ),
    Option(
        "trial_seconds",
        float,
        10.0,
        "Seconds of processor time that a candidate may use in its first run in a worker.",
        least=0,
    ),
    Option("force", str, "", "Force candidates: comma-separated KERNEL=CANDIDATE or CANDIDATE patterns."),
    Option("plan", str, "", "Path of a plan file that pins every decision.", path=True),
    Option(
        "plan_missing",
        str,
        "warn",
        "What to do where the plan does not say what to run, or its kernel has changed since.",
        choices=("warn", "error"),
    ),
    Option("metrics", str, "", "Path of a CSV file that gets a row for each decision.", path=True),
    Option(
        "random",
        str,
        "eager",
        "eager: the same random stream as eager; philox: a faster counter-based generator.",
        choices=("eager", "philox"),
        keys=PROGRAMS,
    ),
    Option("threads", int, 0, "Most threads a kernel may use; 0: torch.get_num_threads().", least=0),
    Option(
        "packed_weights_mib",
        int,
        4096,
        "Most MiB that packed copies of constant weights may take, all of them together; 0: none are made.",
        least=0,
        keys=PROGRAMS,
    ),
    Option(
        "on_failure",
        str,
        "library",
        "What to do with a graph or an operator that polytile fails to compile. library: run it as ATen calls and report it; "
        "raise: raise the error, for those who work on polytile.",
        choices=("library", "raise"),
        keys=NOTHING,
    ),
    Option("verify_ir", bool, False, "Run the verifier between all passes.", keys=NOTHING),
    Option("fuse", bool, True, "Fuse loops; off makes one kernel for each operator.", keys=PROGRAMS),
    Option(
        "wrapper",
        str,
        "python",
        "Backend that writes the program around the kernels; packages may register others.",
        keys=PROGRAMS,
    ),
    Option(
        "sources",
        str,
        "",
        "Sources of candidates for products that take part, comma-separated; empty: all. Of candidates that are as fast as each "
        "other, within the noise, one of the source named first is chosen; if none is named, the best predicted.",
        choices=("triton", "library", "cpp", "cublaslt"),
        listed=True,
        keys=PROGRAMS,
    ),
)


@dataclass(frozen=True)
class Mode:
    """A mode of torch.compile: the options that it stands for here, and in words what it does and what it does not."""

    name: str
    options: Mapping[str, Any]
    doc: str


_PATIENT = {"stall": "tune", "tune": "thorough", "shortlist": 6, "gpu_shortlist": 12, "expected_calls": 10**9}
_NO_GRAPHS = "polytile records no CUDA graph of a program: its launches are made one by one"

MODES: tuple[Mode, ...] = (
    Mode("default", {}, "The options as they are."),
    Mode("reduce-overhead", {}, f"The same as default, with a warning. {_NO_GRAPHS}, so this mode has no counterpart yet."),
    Mode(
        "max-autotune-no-cudagraphs",
        _PATIENT,
        "Measures twice as many candidates, for longer, and again where what is known does not settle the choice, whatever it "
        "takes to compile them. First calls take longer. It does not measure every candidate: that is `tune=all`.",
    ),
    Mode("max-autotune", _PATIENT, f"The same as max-autotune-no-cudagraphs. {_NO_GRAPHS}."),
)
"""The modes that torch.compile(mode=...) may name. An option that is given beside one is stronger than it."""

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
    """`value` as an option of that type has it: texts, as the environment has them, are read. Raises ValueError."""
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
    """`value` as the option has it; raises OptionError, which names `origin`, for what it does not take."""
    try:
        value = _of_type(option.type, value)
    except (TypeError, ValueError):
        raise OptionError(
            f"option {option.name!r} ({origin}) is {value!r}; it takes a value of type {option.type.__name__}."
        ) from None
    named = parts(value) if option.listed else (value,)
    none_named = option.listed and value == option.default == ""
    if option.choices and not none_named and not (named and set(named) <= set(option.choices)):
        many = " one or more" if option.listed else ""
        raise OptionError(
            f"option {option.name!r} ({origin}) is {value!r}; choose{many} from {', '.join(map(str, option.choices))}."
        )
    if option.least is not None and not value >= option.least:  # so NaN is refused too
        raise OptionError(f"option {option.name!r} ({origin}) is {value!r}; it takes {option.least:g} or more.")
    return _absolute(value) if option.path else value


def _absolute(named: str) -> str:
    """A path, wherever the process goes from here. It begins with ~ where the user has no home directory; a URL stays."""
    path = os.path.expanduser(named)
    return path if not path or path.startswith("~") or "://" in path else str(Path(path).absolute())


_first_asked = functools.cache(_absolute)


def parts(value: str) -> tuple[str, ...]:
    """What stands in a comma-separated value, in its order."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def get(name: str) -> Any:
    """The value in force of the option `name`; raises OptionError for an unknown name or a bad value."""
    option = _named(name)
    overrides = _overrides.get()
    if overrides is not None and name in overrides:
        return overrides[name]
    if option.variable in os.environ:
        value = os.environ[option.variable]
        return _checked(option, _first_asked(value) if option.path else value, f"environment variable {option.variable}")
    return option.default


def cache_dir() -> Path:
    """The directory that the option `cache_dir` names, as an absolute path. It begins with ~ where the user has no home
    directory."""
    return Path(_absolute(get("cache_dir") or BY_NAME["cache_dir"].default))


def unknown_variables() -> dict[str, str]:
    """Variables of the environment that begin like those of options and are none; with the nearest one, or ""."""
    known = {option.variable: option for option in BY_NAME.values()}
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    return {name: next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.8)), "") for name in unknown}


def check_environment() -> None:
    """Reads every option, for whoever begins to use polytile: raises OptionError for a variable with a value that its option does
    not take, and warns of those that no option has, each once."""
    for name in tuple(BY_NAME):
        get(name)
    for name, nearest in unknown_variables().items():
        _tell_of_unknown(name, f"did you mean {nearest}?" if nearest else "docs/options.md lists them.")


@functools.cache
def _tell_of_unknown(name: str, advice: str) -> None:
    log.warning("The environment sets %s, but polytile has no such option; %s", name, advice)


def check(values: Mapping[str, Any], origin: str = "options=") -> dict[str, Any]:
    """`values` with every name and value checked; raises OptionError naming the option, and the nearest known one where there
    is none of that name."""
    if not isinstance(values, Mapping):
        raise OptionError(f"{origin} takes a mapping from names of options to their values; it was given {values!r}.")
    return {name: _checked(_named(name), value, origin) for name, value in values.items()}


def of_mode(name: str | None) -> Mapping[str, Any]:
    """The options that a mode of torch.compile stands for; None is the default one. Raises OptionError for an unknown one."""
    for mode in MODES:
        if mode.name == (name or "default"):
            return mode.options
    raise OptionError(f"polytile has no mode {name!r}; choose from {', '.join(mode.name for mode in MODES)}.")


@contextlib.contextmanager
def override(**values: Any) -> Iterator[None]:
    """Within the block the given options have the given values, in this context (thread or task) only. What is compiled within it
    keeps them; what was compiled before keeps its own."""
    with restored(check(values, "override")):
        yield


@contextlib.contextmanager
def restored(values: Mapping[str, Any]) -> Iterator[None]:
    """As `override`, of values that were checked before: of options, too, that are registered no more."""
    token = _overrides.set({**overridden(), **values})
    try:
        yield
    finally:
        _overrides.reset(token)


def overridden() -> dict[str, Any]:
    """The options that this context has given values, by `override` or for the compile under way."""
    return dict(_overrides.get() or {})


def of_kernels() -> dict[str, Any]:
    """The values in force of all options that keep kernels apart."""
    return {name: get(name) for name, option in tuple(BY_NAME.items()) if option.keys == KERNELS}


def register(*options: Option) -> None:
    """Adds options of a package outside polytile, which are given like polytile's own. Their values take part in the keys of
    kernels, measurements and plans, as long as they keep kernels apart. Raises OptionError for a name that is taken and for a
    default that it does not take."""
    for option in options:
        if not isinstance(option, Option):
            raise OptionError(f"polytile.options.register takes Option(name, type, default, doc); it was given {option!r}.")
        if BY_NAME.get(option.name, option) != option:
            raise OptionError(f"there is an option {option.name!r} already; put the package's name before it.")
        _checked(option, option.default, "its default")
        if option.keys not in (KERNELS, PROGRAMS, NOTHING):
            raise OptionError(f"option {option.name!r} has keys={option.keys!r}; choose from {KERNELS}, {PROGRAMS}, {NOTHING}.")
    BY_NAME.update((option.name, option) for option in options)


def unregister(*names: str) -> None:
    """Takes registered options away again; raises OptionError for polytile's own and for unknown ones."""
    for name in names:
        if _named(name).name in _OWN:
            raise OptionError(f"option {name!r} comes with polytile and stays.")
        del BY_NAME[name]


def registered() -> dict[str, str]:
    """Name and value in force, as text, of every registered option that keeps kernels apart and is not at its default."""
    added = [option for name, option in tuple(BY_NAME.items()) if name not in _OWN and option.keys == KERNELS]
    given = ((option, get(option.name)) for option in added)
    return {option.name: repr(value) for option, value in given if value != option.default}


def as_markdown() -> str:
    """The table as the text of docs/options.md."""
    rows = ["| option | environment | default | meaning |", "| --- | --- | --- | --- |"]
    for option in TABLE:
        choices = f" {'Any of' if option.listed else 'One of'}: {', '.join(map(str, option.choices))}." if option.choices else ""
        rows.append(f"| `{option.name}` | `{option.variable}` | `{option.default!r}` | {option.doc}{choices} |")
    about = "Generated from `src/polytile/options.py`. A package adds its own with `polytile.options.register(Option(...))`."
    return f"# Options\n\n{about}\n\n" + "\n".join(rows) + f"\n\n{_modes_as_markdown()}\n"


def _modes_as_markdown() -> str:
    about = (
        "`mode=` of `torch.compile` and of `polytile.compile` stands for some of these options. An option that is given beside "
        "it is stronger than the mode; the mode is stronger than `override` and the environment."
    )
    rows = ["| mode | options | what it does |", "| --- | --- | --- |"]
    for mode in MODES:
        given = ", ".join(f"`{name}={value}`" for name, value in mode.options.items()) or "–"
        rows.append(f"| `{mode.name}` | {given} | {mode.doc} |")
    return f"## Modes\n\n{about}\n\n" + "\n".join(rows)


__all__ = [
    "BY_NAME", "KERNELS", "MODES", "NOTHING", "PROGRAMS", "TABLE", "Mode", "Option", "as_markdown", "cache_dir", "check",
    "check_environment", "get",
    "of_kernels", "of_mode", "overridden", "override", "parts", "register", "registered", "restored", "unknown_variables",
    "unregister",
]  # fmt: skip
