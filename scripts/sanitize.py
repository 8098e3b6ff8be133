"""Runs GPU tests of loops and of what surrounds kernels under NVIDIA's compute-sanitizer (`make sanitize-gpu`).

memcheck finds accesses outside of memory and misaligned ones, racecheck races in shared memory; both look at generated kernels
alone. Memory comes from the driver, not from torch's cache, so that what lies beyond a tensor is no memory. Tests that fault on
purpose, count memory or record graphs, for which that cache is needed, are left out. What follows the options goes to pytest.
Ends with status 0 if all is well, 1 if something was found or a test failed, 2 where the tool or the GPU is missing.

`--jobs 8` shares the tests among as many processes. `--predicted` runs of each regime's candidates only what is predicted to be
best, `--brief` some of the tests so: minutes, not half an hour.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from polytile.codegen.function_names import PREFIX

ROOT = Path(__file__).resolve().parent.parent
TOOL = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
TESTS = ("tests/gpu/test_functions.py", "tests/gpu/test_machinery.py")
LEFT_OUT = (
    "without_memory", "largest", "scans_along", "warm_process", "graph", "recorded", "captured", "librarys_own",
)  # fmt: skip
"""Parts of names of tests: of full devices, of tensors that take a sanitizer too long, of processes of their own, of graphs."""
TIMED = "timed"
"""The same of tests that need several candidates to be measured."""
BRIEF = "many_shapes and (float32 or bfloat16) or cluster or its_gradient or batch_norm or 16_bits"
"""Parts of the names of the tests that a brief run has."""
FOUND = 86
"""The status with which the tool ends a program in which it found something."""
PLACES = ("{CUDA_HOME}/bin", "{CUDA_PATH}/bin", "/usr/local/cuda*/bin", "/opt/cuda*/bin", "/usr/local/cuda*/compute-sanitizer")


def find(environment: Mapping[str, str]) -> str:
    """The tool: on PATH, or in one of PLACES; "" where it is nowhere."""
    found = shutil.which(TOOL, path=environment.get("PATH", ""))
    if found:
        return found
    homes = {name: environment.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")}
    usable = [place.format(**homes) for place in PLACES if all(homes[n] for n in homes if "{" + n + "}" in place)]
    candidates = [path for place in usable for path in sorted(glob.glob(f"{place}/{TOOL}"), reverse=True)]
    return next((path for path in candidates if os.access(path, os.X_OK)), "")


def missing(tool: str, gpu: bool) -> str:
    """What stands in the way; "" if nothing does."""
    if not tool:
        return (
            f"{TOOL} is not on PATH, under $CUDA_HOME or in {', '.join(p for p in PLACES if '{' not in p)}. It comes with "
            "NVIDIA's CUDA toolkit (apt-get install cuda-sanitizer-13-0, or the conda package cuda-sanitizer-api)."
        )
    return "" if gpu else "there is no CUDA device in this process; see nvidia-smi."


def command(tool: str, check: str, tests: Sequence[str], rest: Sequence[str]) -> list[str]:
    """pytest under the tool's `check`."""
    options = ["--tool", check, "--error-exitcode", str(FOUND), "--kernel-name", f"kernel_substring={PREFIX}"]
    return [tool, *options, sys.executable, "-m", "pytest", *tests, *rest]


def chosen(brief: bool, predicted: bool) -> list[str]:
    """Which tests, as pytest's options."""
    wanted = [f"({BRIEF})"] if brief else []
    left_out = [*LEFT_OUT, *([TIMED] if brief or predicted else ())]
    return ["-k", " and ".join([*wanted, *[f"not {part}" for part in left_out]])]


def shares(tests: Sequence[str], selection: Sequence[str], jobs: int) -> list[list[str]]:
    """What each process runs: one all of it, several every so many of the tests that pytest collects."""
    if jobs == 1:
        return [[*tests, *selection]]
    asked = [sys.executable, "-m", "pytest", "--collect-only", "-q", *tests, *selection]
    listed = subprocess.run(asked, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    found = [line for line in listed if "::" in line]
    return [found[k::jobs] for k in range(jobs) if found[k::jobs]]


def run(commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> int:
    """The worst status of commands that run side by side: of several, each is heard as soon as it has ended."""
    heard = None if len(commands) == 1 else subprocess.PIPE
    statuses = []
    with ThreadPoolExecutor(len(commands)) as pool:
        heard_as = {"stdout": heard, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        begin = partial(subprocess.run, cwd=ROOT, env=environment, **heard_as)
        running = [pool.submit(begin, one) for one in commands]
        for ended in as_completed(running):
            process = ended.result()
            print(process.stdout or "", end="", flush=True)
            statuses.append(process.returncode)
    return FOUND if FOUND in statuses else next((status for status in statuses if status), 0)


def told(check: str, status: int) -> str:
    if status == FOUND:
        return f"{check}: found something; its report stands above."
    return f"{check}: nothing found." if status == 0 else f"{check}: the tests ended with status {status}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the tests")
    parser.add_argument("--predicted", action="store_true", help="one candidate a regime: what is predicted to be best")
    parser.add_argument("--brief", action="store_true", help="some of the tests, one candidate a regime")
    arguments, rest = parser.parse_known_args()
    import torch

    tool = find(os.environ)
    trouble = missing(tool, torch.cuda.is_available())
    if trouble:
        print(f"make sanitize-gpu: {trouble}", file=sys.stderr)
        return 2
    untuned = {"POLYTILE_TUNE": "off"} if arguments.brief or arguments.predicted else {}
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", **untuned}
    parts = shares(arguments.tests, chosen(arguments.brief, arguments.predicted), arguments.jobs)
    results = {}
    for check in arguments.tools:
        results[check] = run([command(tool, check, part, rest) for part in parts], environment)
    for check, status in results.items():
        print(told(check, status))
    return int(any(results.values()))


if __name__ == "__main__":
    sys.exit(main())
