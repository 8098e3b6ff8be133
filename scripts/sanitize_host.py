"""Runs tests of everything that polytile has in C, and of generated C++, under AddressSanitizer and ThreadSanitizer.

    python -m scripts.sanitize_host [--tools address thread] [pytest's options]

The compiler named by the option `cxx` gets the sanitizer's flag, so that each shared object polytile makes in these tests is
instrumented: the launcher, the programs around kernels, kernels. Python and PyTorch are not; the sanitizer's runtime is loaded
before them. ThreadSanitizer runs kernels on one thread each: it cannot see into the OpenMP runtime and would take its barriers
for none.

COVERED says which tests run each C file, and what they do not reach. Ends with status 0 if all is well, 1 if something was found
or a test failed, 2 where GCC or its sanitizers are missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "polytile"

LAUNCHER = "tests/runtime/test_launcher.py"
PROGRAMS = "tests/wrapper/test_cpp.py"
CALLS = "tests/runtime/test_fallback.py"
TRIALS = "tests/dispatch/test_live.py"
DOOR = "tests/behaviour/test_front_door.py"
WEIGHTS = "tests/runtime/test_weights.py"
GRAPHS = "tests/runtime/cuda/test_graphs.py"
DRIVER = "tests/runtime/cuda/test_launch.py"
THREADS = "tests/behaviour/test_concurrency.py"

COVERED: Mapping[str, tuple[str, ...]] = {
    "runtime/arena.c": (PROGRAMS,),
    "runtime/door.c": (DOOR,),
    "runtime/entry.c": (DOOR,),
    "runtime/fallback.c": (CALLS,),
    "runtime/formula.c": (LAUNCHER,),
    "runtime/guard_facts.c": ("tests/behaviour/test_guard_memo_facts.py", "tests/behaviour/test_guard_memo_rules.py"),
    "runtime/guard_memo.c": ("tests/behaviour/test_guard_memo_facts.py", "tests/behaviour/test_guard_memo_rules.py"),
    "runtime/keys.c": (LAUNCHER,),
    "runtime/kinds.c": ("tests/autotuner/test_launches.py",),
    "runtime/launcher.c": (LAUNCHER, THREADS),
    "runtime/mersenne.c": ("tests/runtime/test_mersenne.py",),
    "runtime/module.c": (LAUNCHER,),
    "runtime/pair.c": ("tests/runtime/cuda/test_cublaslt_epilogues.py",),
    "runtime/program.c": (PROGRAMS,),
    "runtime/record.c": ("tests/runtime/test_profiler.py",),
    "runtime/results.c": ("tests/wrapper/test_results.py",),
    "runtime/table.c": (LAUNCHER, "tests/runtime/test_regime.py"),
    "runtime/trial.c": (TRIALS,),
    "runtime/tuned_launch.c": ("tests/autotuner/test_launches.py",),
    "runtime/triton_launch.c": ("tests/runtime/cuda/test_triton_launch.py",),
    "runtime/weights.c": (WEIGHTS,),
    "runtime/cuda/graph_calls.c": (GRAPHS,),
    "runtime/cuda/graph_captures.c": (GRAPHS,),
    "runtime/cuda/graph_launches.c": (GRAPHS,),
    "runtime/cuda/graph_steps.c": (GRAPHS,),
    "runtime/cuda/graph_stretches.c": (GRAPHS,),
    "runtime/cuda/graphs.c": (GRAPHS,),
    "runtime/cuda/hip.c": ("tests/runtime/cuda/test_hip.py",),
    "runtime/cuda/launch.c": (DRIVER,),
    "runtime/cuda/product.c": ("tests/runtime/cuda/test_native_products.py",),
    "learn/forest.c": ("tests/learn/test_model.py",),
    "packages/gpu.c": ("tests/packages/test_on_gpus.py",),
    "packages/on_gpu.c": ("tests/packages/test_on_gpus.py",),
    "packages/package.c": ("tests/packages/test_packages.py",),
    "packages/runtime.c": ("tests/packages/test_packages.py",),
}
"""By C file under src/polytile. Those under cuda/ run on drivers that the tests build; what a real driver does with what
it is given is for `scripts.sanitize`, on a GPU."""

LEFT_OUT = "fork or interpreted"
"""Parts of the names of tests that are left out: a forked child of a process with threads is beyond the sanitizers."""

FINDINGS = ("ERROR: AddressSanitizer", "WARNING: ThreadSanitizer")
"""What stands in reports of errors. Others say that a program, such as a worker with little memory, could not be started."""

FOUND = 86
"""The status with which a sanitized process ends that found something."""


@dataclass(frozen=True)
class Sanitizer:
    """How code is built for one, and how processes run under it. `libraries` are loaded before everything else."""

    flags: str
    libraries: tuple[str, ...]
    options: Mapping[str, str]
    tests: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


EVERYTHING = tuple(dict.fromkeys(test for tests in COVERED.values() for test in tests))

SANITIZERS: Mapping[str, Sanitizer] = {
    "address": Sanitizer(
        "-fsanitize=address -fno-omit-frame-pointer -g",
        ("libasan.so", "libstdc++.so"),  # the second: else the first finds no exceptions to look after
        # A stand-in for a driver frees tensors that torch has made with `new`.
        {"ASAN_OPTIONS": f"detect_leaks=0:exitcode={FOUND}:allocator_may_return_null=1:alloc_dealloc_mismatch=0"},
        (*EVERYTHING, "tests/codegen/test_no_memory.py"),
        environment={"PYTHONMALLOC": "malloc"},  # Python's own hides what lies beyond an allocation
    ),
    "thread": Sanitizer(
        "-fsanitize=thread -g",
        ("libtsan.so",),
        {"TSAN_OPTIONS": f"exitcode={FOUND}:report_signal_unsafe=0:ignore_noninstrumented_modules=1"},
        (LAUNCHER, TRIALS, DOOR, WEIGHTS, THREADS, DRIVER),
        environment={"OMP_NUM_THREADS": "1"},
    ),
}


def uncovered() -> list[str]:
    """C files that COVERED does not name."""
    return sorted({path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.c")} - COVERED.keys())


def found_libraries(sanitizer: Sanitizer) -> list[str]:
    """The paths of the libraries to load; without those that GCC does not have."""
    asked = (_asked(f"-print-file-name={name}") for name in sanitizer.libraries)
    return [path for path in asked if os.path.isabs(path) and os.path.exists(path)]


def _asked(question: str) -> str:
    return subprocess.run(["g++", question], capture_output=True, text=True).stdout.strip()


def environment_of(sanitizer: Sanitizer, libraries: list[str], home: str) -> dict[str, str]:
    """What the tests run in: code is compiled anew, into a cache directory of their own, by a compiler that is not looked at."""
    settings = {"POLYTILE_CXX": f"env -u LD_PRELOAD g++ {sanitizer.flags}", "LD_PRELOAD": ":".join(libraries), "TMPDIR": home}
    # pytest would keep what is written to stderr
    reports = {name: f"{value}:log_path={home}/report" for name, value in sanitizer.options.items()}
    return {**os.environ, **reports, **sanitizer.environment, **settings}


def run(name: str, rest: list[str]) -> int:
    """The status of the tests under one sanitizer."""
    sanitizer = SANITIZERS[name]
    with tempfile.TemporaryDirectory(prefix=f"polytile-{name}-") as home:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", f"not ({LEFT_OUT})", *sanitizer.tests, *rest]
        environment = environment_of(sanitizer, found_libraries(sanitizer), home)
        status = subprocess.run(command, cwd=ROOT, env=environment).returncode
        written = [path.read_text(errors="replace") for path in sorted(Path(home).glob("report.*"))]
        reports = [text for text in written if any(finding in text for finding in FINDINGS)]
        print(*reports, sep="\n")
        if status == FOUND and not reports:
            status = 0  # a program that the tests started could not run so, which they have seen for themselves
        return FOUND if reports else status


def told(name: str, status: int) -> str:
    if status == FOUND:
        return f"{name}: found something; its report stands above."
    return f"{name}: nothing found." if status == 0 else f"{name}: the tests ended with status {status}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tools", nargs="+", choices=tuple(SANITIZERS), default=tuple(SANITIZERS))
    arguments, rest = parser.parse_known_args()
    lacking = [name for name in arguments.tools if not (shutil.which("g++") and found_libraries(SANITIZERS[name]))]
    if lacking:
        print(f"make sanitize: GCC's sanitizers are missing ({', '.join(lacking)}); install g++ with libasan and libtsan.",
              file=sys.stderr)  # fmt: skip
        return 2
    for file, tests in COVERED.items():
        print(f"{file:22} {' '.join(tests)}")
    results = {name: run(name, rest) for name in arguments.tools}
    for name, status in results.items():
        print(told(name, status))
    return int(any(results.values()))


if __name__ == "__main__":
    sys.exit(main())
