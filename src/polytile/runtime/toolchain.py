"""The C++ compiler: its location, its identity, and the instruction set that it targets with -march=native.

The result is stored on disk under the compiler's path, modification time and size and the processor's identity. So later
processes start no program to obtain it, and machines that share a cache directory have separate results.

Without a compiler, the one that last filled the cache directory on such a processor stands in for it: its objects are
found and used, but nothing new can be compiled (`Toolchain.present` is False).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from polytile import options
from polytile.errors import CompilerMissing
from polytile.problem import digest
from polytile.runtime import cache
from polytile.runtime.cpu import cpu

log = logging.getLogger("polytile")

FORMAT = 5
"""Version of the record on disk. Raise it when the fields of Toolchain change their meaning."""

DEFAULT_COMPILERS = ("g++", "clang++")

NATIVE_FLAGS: tuple[tuple[str, ...], ...] = (("-march=native",), ("-mcpu=native",), ())
"""Ways to request the machine's own instruction set. The first that the compiler accepts is used."""

KERNEL_FLAGS = ("-O2", "-std=c++17", "-fPIC", "-shared", "-w", "-fno-math-errno", "-fno-trapping-math",
                "-ffp-contract=fast", "-fno-semantic-interposition", "-fno-exceptions")  # fmt: skip
"""Flags of generated kernels. They keep eager's inf and nan semantics (no -ffast-math); -O3 would only compile more
slowly. With -fno-exceptions, locals with destructors need nothing from the C++ library, which kernels are not linked
with."""

GCC_LIBRARIES = ("-nodefaultlibs", "-lm", "-lgcc")
"""GCC links a kernel with its own helpers only. Other functions that a kernel calls (memcpy, the threading runtime) are
already in the process, and searching the C++ libraries takes a sixth of a small kernel's compile time."""

EXTENSION_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-w", "-fno-strict-aliasing")
"""Flags of the launcher, a C extension of this Python."""

VARIABLES = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "LD_RUN_PATH", "SDKROOT",
    "MACOSX_DEPLOYMENT_TARGET", "SOURCE_DATE_EPOCH", "GCC_EXEC_PREFIX", "CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS",
)  # fmt: skip
PREFIXES = ("CCC_", "CLANG_", "NIX_CFLAGS", "NIX_CXX", "NIX_LDFLAGS")
"""Environment variables, and prefixes of their names, that a compiler or its wrapper reads. They are passed on to the
compiler, which may need them, and are part of every key."""

DIVERTING = ("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES")
"""Variables that make GCC write extra files. They are not passed on."""

ISA_TABLE: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("avx512", 16, ("AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL")),
    ("avx2", 8, ("AVX2", "FMA")),
    ("avx", 8, ("AVX",)),
    ("sse", 4, ("SSE2",)),
    ("neon", 4, ("ARM_NEON",)),
    ("vsx", 4, ("VSX",)),
)
"""Instruction set, float lanes of its vector registers, and macros that must all be defined. The first match wins."""

_FEATURE = re.compile(r"#define __((?:AVX|SSE|SSSE|AMX|ARM_FEATURE_|ARM_NEON)\w*?|FMA|F16C|BMI2?|GFNI|VSX)(?:__)? \S*")

INSTALL = (
    "Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda: conda install gxx), "
    "or name one with the option cxx, POLYTILE_CXX or CXX."
)

NONE = f"polytile compiles kernels with a C++ compiler, but PATH has no {' or '.join(DEFAULT_COMPILERS)}. {INSTALL}"


@dataclass(frozen=True)
class Toolchain:
    """A working C++ compiler and what it targets on this machine.

    Attributes
    ----------
    command : tuple of str
        Command that starts the compiler; its first word is `path`.
    kind : str
        "gcc" or "clang".
    version : str
        First line of --version, with the command's own flags and the environment variables that the compiler reads.
    native : tuple of str
        Flags that request this machine's instruction set.
    isa : str
        A name of ISA_TABLE, or "scalar".
    lanes : int
        Floats per vector register.
    macros : str
        Digest of all predefined macros.
    present : bool
        Whether it is installed here, rather than known only from the cache.
    """

    command: tuple[str, ...]
    kind: str
    version: str
    native: tuple[str, ...]
    isa: str
    lanes: int
    macros: str
    present: bool = True

    @property
    def path(self) -> str:
        return self.command[0]

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of every generated kernel."""
        return (*KERNEL_FLAGS, *self.native)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Trailing words of the command for a generated kernel."""
        return GCC_LIBRARIES if self.kind == "gcc" else ()

    @property
    def identity(self) -> str:
        """Text that differs whenever the same source and flags may give another binary. Part of every kernel's key."""
        return f"{self.kind}; {self.version}; {self.isa} {self.macros}; {cpu().identity}"


_known: dict[tuple[Any, ...], Toolchain] = {}


def find() -> Toolchain:
    """The compiler named by the option `cxx`, else $CXX, else PATH; without one, the compiler that filled the cache.
    Raises CompilerMissing.

    A process that finds an earlier process's record on disk starts no program.
    """
    asked = options.get("cxx"), os.environ.get("CXX", ""), os.environ.get("PATH", ""), variables(), cache.current().root
    if asked not in _known:
        _known[asked] = _found(*asked[:2])
    return _known[asked]


def _found(option: str, variable: str) -> Toolchain:
    try:
        command = _locate(option, variable)
    except CompilerMissing:
        absent = None if option else _recall(_latest_name())
        if absent is None:
            raise
        log.info("There is no C++ compiler here; kernels that %s compiled earlier are used.", absent.version)
        return dataclasses.replace(absent, present=False)
    known = _recall(_record_name(command)) or _remember(_record_name(command), _examine(command))
    if known != _recall(_latest_name()):
        _remember(_latest_name(), known)
    return known


def require() -> Toolchain:
    """The compiler, for new compilations. Raises CompilerMissing if none is installed."""
    toolchain = find()
    if not toolchain.present:
        raise CompilerMissing(NONE)
    return toolchain


CPU_WORDS = {"SSE3": "pni", "BMI": "bmi1"}
"""Linux's names of processor features, without underscores, where they differ from the compiler's macro in lower case."""


def features() -> tuple[str, ...]:
    """Processor features that the compiler relies on, as named in /proc/cpuinfo without underscores; empty where that
    file lists none. Starts the compiler. Raises CompilerMissing."""
    tools = require()
    macros = _output(tools.command, *tools.native, "-dM", "-E", "-x", "c++", os.devnull) or ""
    named = {match[1] for match in map(_FEATURE.fullmatch, macros.splitlines()) if match}
    wanted = {CPU_WORDS.get(name, name.lower().replace("_", "")) for name in named}
    try:
        with open("/proc/cpuinfo") as file:
            line = next(line for line in file if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return ()
    return tuple(sorted(wanted & {word.replace("_", "") for word in line.split(":")[1].split()}))


def variables() -> tuple[str, ...]:
    """The environment variables that affect the compiler, as NAME=VALUE, sorted by name."""
    names = sorted(name for name in os.environ if name in VARIABLES or name.startswith(PREFIXES))
    return tuple(f"{name}={value}" for name in names if (value := os.environ.get(name)))


def environment() -> dict[str, str]:
    """The environment to start the compiler in."""
    return {**{name: value for name, value in os.environ.items() if name not in DIVERTING}, "LC_ALL": "C"}


def reset() -> None:
    """Forgets the compilers found by this process; the next `find` searches again."""
    _known.clear()


def _locate(option: str, variable: str) -> tuple[str, ...]:
    """Words of the command that starts the compiler. The first is an absolute path."""
    if option:
        command = _resolved(option)
        if command is None:
            raise CompilerMissing(f"The option cxx is {option!r}, but there is no such program on PATH. {INSTALL}")
        return command
    if variable:
        command = _resolved(variable)
        if command is not None:
            return command
        log.warning("$CXX is %r, but there is no such program; polytile looks for g++ and clang++ instead.", variable)
    for name in DEFAULT_COMPILERS:
        command = _resolved(name)
        if command is not None:
            return command
    raise CompilerMissing(NONE)


def _resolved(text: str) -> tuple[str, ...] | None:
    words = shlex.split(text)
    path = shutil.which(os.path.expanduser(words[0])) if words else None
    return (os.path.abspath(path), *words[1:]) if path else None


def _flags_of(command: tuple[str, ...]) -> tuple[str, ...]:
    """The flags that follow the program names: none for "ccache g++", three words for "g++ -m64 --param x=1"."""
    first = next((place for place, word in enumerate(command) if word.startswith("-")), len(command))
    return command[first:]


def _record_name(command: tuple[str, ...]) -> str:
    """File of a compiler's record. The name changes when the compiler is replaced or the processor differs."""
    stamps = []
    for word in command:  # for "ccache g++", both programs matter
        program = shutil.which(word)
        if program:
            status = os.stat(program)
            stamps.append((program, status.st_mtime_ns, status.st_size))
    return f"toolchain/{digest(json.dumps([FORMAT, command, stamps, variables(), cpu().identity]))}.json"


def _latest_name() -> str:
    """File of the record of the compiler last used on this kind of processor."""
    return f"toolchain/latest-{digest(json.dumps([FORMAT, cpu().identity]))}.json"


def _recall(name: str) -> Toolchain | None:
    text = cache.current().read(name)
    if text is None:
        return None
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()
    }
    return Toolchain(**fields)


def _remember(name: str, toolchain: Toolchain) -> Toolchain:
    text = json.dumps(dataclasses.asdict(toolchain), indent=1)
    cache.current().write(name, text.encode())
    return toolchain


def _examine(command: tuple[str, ...]) -> Toolchain:
    """Queries the compiler for its properties. Starts it two to four times; about 30 ms."""
    version = _output(command, "--version")
    if version is None:
        raise CompilerMissing(f"{shlex.join(command)} exists but does not run. {INSTALL}")
    for native in NATIVE_FLAGS:
        macros = _output(command, *native, "-dM", "-E", "-x", "c++", os.devnull)
        if macros is not None:
            return describe(command, version, native, macros)
    raise CompilerMissing(f"{shlex.join(command)} runs but does not preprocess C++. {INSTALL}")


def describe(command: tuple[str, ...], version: str, native: tuple[str, ...], macros: str) -> Toolchain:
    """Builds a Toolchain from the compiler's answers. `macros` is the output of -dM -E. Raises CompilerMissing for a
    compiler that is neither GCC nor clang."""
    kind = "clang" if "#define __clang__ " in macros else "gcc" if "#define __GNUC__ " in macros else ""
    if not kind:
        raise CompilerMissing(f"{shlex.join(command)} is neither GCC nor clang, as kernels need. {INSTALL}")
    defined = {match[1] for match in map(_FEATURE.fullmatch, macros.splitlines()) if match}
    isa, lanes = next(((name, n) for name, n, needed in ISA_TABLE if defined.issuperset(needed)), ("scalar", 1))
    return Toolchain(
        command=command,
        kind=kind,
        version=" ".join([(version.splitlines() or [""])[0].strip(), *_flags_of(command), *variables()]),
        native=native,
        isa=isa,
        lanes=lanes,
        macros=digest("\n".join(sorted(macros.splitlines()))),
    )


def _output(command: tuple[str, ...], *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
