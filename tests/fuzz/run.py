"""Random programs, compiled and compared with eager: `python -m tests.fuzz.run --seeds 0:500`.

A program that differs is reduced to the fewest statements and calls that differ still, and printed as a script. Fifty seeds
run in a process of their own, so that one that crashes is a finding too. Where `aot_eager` differs from eager, PyTorch is the
cause, and its values are as right: writes through `unfold` and into inputs of which as_strided shows more, views of results that
are written with gaps between their elements, inputs that are views of each other, sizes of `nonzero` in slices.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from tests import programs_in_c
from tests.fuzz import doors
from tests.fuzz.compare import eagers, wrong_with
from tests.fuzz.programs import Fuzzed, make

AT_ONCE = 50
PLACE = r"^(at .*?(, when compiled|, at once)?)?: "
DYNAMO = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True, "recompile_limit": 64}


def check(seed: int) -> tuple[Fuzzed, str]:
    """The program of this seed, and the first difference from eager."""
    gc.collect()
    program = make(seed)
    return program, wrong_with(program)


def smaller(program: Fuzzed) -> Iterator[Fuzzed]:
    """Programs with a statement, a result, a call or a gradient less."""
    for k in reversed(range(len(program.lines))):
        line, rest = program.lines[k], program.lines[:k] + program.lines[k + 1 :]
        name, _, expression = line.partition(" = ")
        if not re.fullmatch(r"v\d+", name):
            yield replace(program, lines=rest)
            continue
        results = tuple(r for r in program.results if r != name)
        operands = dict.fromkeys(re.findall(r"\b[vx]\d+\b", expression))
        yield replace(program, lines=rest, results=results or tuple(operands) or ("x0",))
        for operand in operands:
            swapped = [re.sub(rf"\b{name}\b", operand, text) for text in (*rest, *program.results)]
            results = tuple(dict.fromkeys(swapped[len(rest) :]))
            yield replace(program, lines=tuple(swapped[: len(rest)]), results=results)
    for result in program.results:
        if len(program.results) > 1:
            yield replace(program, results=tuple(r for r in program.results if r != result))
    for sizes in program.sizes:
        if len(program.sizes) > 1:
            yield replace(program, sizes=tuple(s for s in program.sizes if s != sizes))
    if any(given.gradient for given in program.inputs):
        yield replace(program, inputs=tuple(replace(given, gradient=False) for given in program.inputs))
    if program.mode != "torch.no_grad()":
        yield replace(program, mode="torch.no_grad()")
    for k, given in enumerate(program.inputs):
        plain = replace(given, layout="contiguous", special=False)
        if plain != given:
            yield replace(program, inputs=(*program.inputs[:k], plain, *program.inputs[k + 1 :]))


def reduced(program: Fuzzed, wrong: Callable[[Fuzzed], object]) -> Fuzzed:
    """The smallest program that can be reached by steps that each still differ."""
    going = True
    while going:
        going = False
        for one in smaller(program):
            if any(not eagers(one, sizes).error for sizes in one.sizes) and wrong(one):
                program, going = one, True
                break
    return program


def told(program: Fuzzed, wrong: str) -> str:
    """A script that shows the difference."""
    text = "\n# ".join([f"seed {program.seed}: {' '.join(wrong.split())[:300]}", *program.text.splitlines()])
    return (
        f"# {text}\nimport torch\nfrom tests.fuzz.compare import wrong_with\n"
        "from tests.fuzz.programs import Fuzzed, Input\nfrom tests.fuzz.run import DYNAMO\n\n"
        f"with torch._dynamo.config.patch(DYNAMO):\n    print(wrong_with({program!r}))\n"
    )


def _kind(wrong: str) -> str:
    """What differs, without where and by how much."""
    return re.sub(r"[^a-zA-Z ].*", "", re.sub(PLACE, "", wrong).strip(), flags=re.DOTALL)


def _work(first: int, last: int, shrink: bool) -> None:
    gc.collect()
    gc.freeze()  # what is imported stays, and need not be searched for each program
    for seed in range(first, last):
        print(f"seed {seed}", flush=True)
        start = time.perf_counter()
        program, wrong = check(seed)
        if wrong:
            print(f"WRONG seed {seed} {wrong}\n{program.text}", flush=True)
            if shrink:
                kind = _kind(wrong)
                program = reduced(program, lambda one, kind=kind: _kind(wrong_with(one)) == kind)
                print(told(program, wrong_with(program)), flush=True)
        if (took := time.perf_counter() - start) > 20:
            print(f"slow: {took:.0f} s\n{program.text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", help="FIRST:LAST")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--in-c", action="store_true", help="every program in C from its first call on")
    parser.add_argument("--doors", action="store_true", help="modules behind polytile.compile, changed between calls (doors.py)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    os.environ.setdefault("POLYTILE_ON_FAILURE", "raise")
    os.environ.setdefault("POLYTILE_VERIFY_IR", "1")
    os.environ.setdefault("POLYTILE_BUILDER", "thread")
    if given.worker:
        logging.disable(logging.ERROR)  # candidates that are forced and not there, errors that are reported here
        if given.in_c:
            programs_in_c.install()
        with torch._dynamo.config.patch(DYNAMO):
            return doors.run(first, last) if given.doors else _work(first, last, not given.no_shrink)
    while first < last:
        end = min(first + AT_ONCE, last)
        command = [sys.executable, "-m", "tests.fuzz.run", "--worker", "--seeds", f"{first}:{end}"]
        print(f"# seeds {first}:{end}", file=sys.stderr, flush=True)
        command += ["--no-shrink"] * given.no_shrink + ["--in-c"] * given.in_c + ["--doors"] * given.doors
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.fullmatch(r"seed (\d+)\n", line):
                first = int(match[1])
            else:
                print(line, end="", flush=True)
        if process.wait():
            program = doors.make(first) if given.doors else make(first)
            print(f"CRASH seed {first}: exit status {process.returncode}\n{program.text}", flush=True)
        first += 1


if __name__ == "__main__":
    main()
