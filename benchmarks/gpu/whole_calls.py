"""`python -m benchmarks.gpu.whole_calls [--models llama gpt2 bert vit] [--seconds 240]`: wall time of Transformers' single calls.

Models of four and six layers in bfloat16 under `torch.inference_mode()`, at several shapes. Contestants: eager; polytile, one
dynamic compile by `polytile.compile`, without and with CUDA graphs; the peer's dynamic compile; the peer's compile for each shape
with CUDA graphs.
Each has a process and caches of its own, but for polytile's two, which run the same kernels. A call begins when the device is
idle, and ends when it is idle again. The contestants take turns at each shape. Kernel time is the sum over all kernels, copies
and fills of a call, by torch's profiler. Results are compared with eager's of the same weights and inputs.

polytile tunes in the background until nothing is left, or until the model's share of `--seconds` is over; the table says which.
Results go to OUT/gpu_whole_calls.json; `--show` prints a file's tables.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import polytile
from benchmarks import record
from benchmarks.contestants import Entrant, Values
from benchmarks.gpu import host_time, models
from benchmarks.timing import geomean
from polytile.compiler.programs import compiled_programs
from polytile.report import Table, show

Run = Callable[..., Tensor]

EAGER, OWN, GRAPHS, PEER, STATIC = "eager", "polytile", "polytile, graphs", "peer, dynamic", "peer, each shape, graphs"
PROCESSES = {EAGER: (EAGER,), OWN: (OWN, GRAPHS), PEER: (PEER,), STATIC: (STATIC,)}
"""The contestants of each process."""
COMPILED: dict[str, Callable[[Run], Run]] = {
    OWN: functools.partial(polytile.compile, options={"stall": "never"}),
    GRAPHS: functools.partial(polytile.compile, options={"stall": "never", "cuda_graphs": "auto"}),
    PEER: functools.partial(torch.compile, dynamic=True),
    STATIC: functools.partial(torch.compile, dynamic=False, mode="reduce-overhead"),
}
"""What compiles for each."""
ROUNDS, CALLS = 5, 10
"""Turns of each contestant at a shape, and calls of a turn."""
CALMED, SETTLED_CALLS = 4, 30
"""How often polytile is waited for after tuning, and calls before each: C is compiled and takes over, and CUDA graphs are made of
launches that come again."""
LAST_SECONDS = 20
"""Seconds that timing the shapes of a model is given."""


class Contestant:
    """The contestants of one process, all for one model: made in that process, and asked by `Entrant`."""

    def __init__(self, given: Values) -> None:
        torch._dynamo.config.recompile_limit = 64
        torch.manual_seed(0)
        case = host_time.CASES[given["model"]]
        model = case.model().to("cuda", models.DTYPE).eval()

        def run(*arguments: Tensor) -> Tensor:
            results: Tensor = model(*arguments)[0]
            return results

        self.arguments = []
        for shape in case.shapes:
            torch.manual_seed(sum(shape))
            self.arguments.append(tuple(each.clone() for each in case.make(*shape)))
        compiled = {who: COMPILED[who](run) for who in given["contestants"] if who in COMPILED}
        self.runs = {who: compiled.get(who, run) for who in given["contestants"]}

    def prepare(self, seconds: float) -> dict[str, Any]:
        """Compiles all, tunes for so long at most, and calls until CUDA graphs are made: seconds of the first calls of each, and
        whether nothing is left to tune."""
        until, took = time.monotonic() + seconds, {}
        with torch.inference_mode():
            for who, run in self.runs.items():
                began = time.monotonic()
                self._all(run)
                took[who] = round(time.monotonic() - began, 2)
            settled = OWN not in self.runs or self._tuned(until)
            for _ in range(CALMED):
                for run in self.runs.values():
                    for _ in range(SETTLED_CALLS):
                        self._all(run)
                polytile.wait(timeout=10)
        return {"first_s": took, "settled": settled}

    def _all(self, run: Any) -> None:
        for arguments in self.arguments:
            run(*arguments)
        torch.cuda.synchronize()

    def _tuned(self, until: float) -> bool:
        settled = False
        while not settled and time.monotonic() < until - 10:
            for run in self.runs.values():
                self._all(run)
            settled = host_time.settle(until)
        return settled

    def single(self, who: str, place: int) -> list[list[float]]:
        """Microseconds of calls at a shape, each until the device has ended, and until it returns."""
        whole, host = [], []
        with torch.inference_mode():
            call = functools.partial(self.runs[who], *self.arguments[place])
            call()
            for _ in range(CALLS):
                torch.cuda.synchronize()
                began = time.perf_counter()
                call()
                returned = time.perf_counter()
                torch.cuda.synchronize()
                whole.append((time.perf_counter() - began) * 1e6)
                host.append((returned - began) * 1e6)
        return [whole, host]

    def kernels(self, who: str, place: int) -> list[float]:
        """Microseconds of a call's kernels, and how many there are."""
        with torch.inference_mode():
            return list(host_time.kernels(functools.partial(self.runs[who], *self.arguments[place]))[:2])

    def graphs(self) -> list[str]:
        """What CUDA graphs did in all calls so far, by program."""
        return [
            str(program.call.cuda_graphs) for program in compiled_programs() if hasattr(program.call, "cuda_graphs")
        ]

    def keep(self, who: str, place: int, file: str) -> None:
        """Writes the result at a shape to a file."""
        with torch.inference_mode():
            np.save(file, self.runs[who](*self.arguments[place]).float().cpu().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(host_time.CASES), default=list(host_time.CASES))
    parser.add_argument("--contestants", nargs="+", choices=list(PROCESSES), default=list(PROCESSES))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or record.RESULTS))
    parser.add_argument("--show", type=Path, help="only print the tables of a result file; needs no GPU")
    given = parser.parse_args()
    if given.show is not None:
        report(json.loads(given.show.read_text())["results"]["cells"])
        return
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu.whole_calls needs an NVIDIA GPU; this process sees none.")
    end, cells = time.monotonic() + given.seconds, []
    for place, name in enumerate(given.models):
        share = (end - time.monotonic()) / (len(given.models) - place)
        cells += measure(name, share, given.contestants)
        path = record.write("gpu_whole_calls", {"device": torch.cuda.get_device_name(), "cells": cells}, given.out)
    report(cells)
    print(path)


def measure(name: str, seconds: float, contestants: Sequence[str]) -> list[dict[str, Any]]:
    """The cells of one model."""
    until, cells = time.monotonic() + seconds, []
    processes = {who: PROCESSES[who] for who in contestants}
    with contextlib.ExitStack() as stack:
        entrants = {
            who: stack.enter_context(
                Entrant("benchmarks.gpu.whole_calls:Contestant", {"model": name, "contestants": each})
            )
            for who, each in processes.items()
        }
        threads = stack.enter_context(concurrent.futures.ThreadPoolExecutor(len(entrants)))
        left = max(20.0, until - time.monotonic() - LAST_SECONDS)
        prepared = dict(
            zip(entrants, threads.map(lambda entrant: _asked(entrant, left), entrants.values()), strict=True)
        )
        for who, found in prepared.items():
            print(f"{name}, {who}: {found}", flush=True)
        ready = {who: each for who, each in processes.items() if "error" not in prepared[who]}
        for place, shape in enumerate(host_time.CASES[name].shapes):
            cell = {"model": name, "shape": list(shape), "settled": prepared.get(OWN, {}).get("settled", False)}
            cell["first_s"] = {who: s for found in prepared.values() for who, s in found.get("first_s", {}).items()}
            cell |= at_shape({each: entrants[who] for who in ready for each in ready[who]}, place)
            cell["graphs"] = entrants[OWN].ask("graphs") if OWN in ready else []
            cells.append(cell)
            print(json.dumps(cell), flush=True)
    return cells


def _asked(entrant: Entrant, seconds: float) -> dict[str, Any]:
    try:
        found: dict[str, Any] = entrant.ask("prepare", seconds)
    except RuntimeError as error:
        return {"error": str(error)[:500]}
    return found


def at_shape(entrants: Mapping[str, Entrant], place: int) -> dict[str, Any]:
    """What each contestant takes at a shape, in turns, and how far its results are from eager's."""
    order = list(entrants)
    samples: dict[str, tuple[list[float], list[float]]] = {who: ([], []) for who in order}
    for turn in range(ROUNDS):
        for who in order if turn % 2 else reversed(order):
            for kept, new in zip(samples[who], entrants[who].ask("single", who, place), strict=True):
                kept.extend(new)
    device = {who: entrant.ask("kernels", who, place) for who, entrant in entrants.items()}
    return {
        "wall_us": {who: round(statistics.median(whole), 1) for who, (whole, _) in samples.items()},
        "host_us": {who: round(statistics.median(host), 1) for who, (_, host) in samples.items()},
        "gpu_us": {who: found[0] for who, found in device.items()},
        "kernels": {who: found[1] for who, found in device.items()},
        "off": off(entrants, place),
    }


def off(entrants: Mapping[str, Entrant], place: int) -> dict[str, float]:
    """The mean error of each contestant's results over the mean of eager's."""
    if EAGER not in entrants:
        return {}
    with tempfile.TemporaryDirectory() as directory:
        results = {}
        for who, entrant in entrants.items():
            entrant.ask("keep", who, place, f"{directory}/result.npy")
            results[who] = np.load(f"{directory}/result.npy")
    right = results.pop(EAGER)
    return {who: float(np.abs(result - right).mean() / np.abs(right).mean()) for who, result in results.items()}


def report(cells: Sequence[Mapping[str, Any]]) -> None:
    """The time of a call at each shape, and what it is beside eager's and the peer's."""
    rows = []
    for cell in cells:
        wall = cell["wall_us"]
        name = f"{cell['model']} {'×'.join(map(str, cell['shape']))}{'' if cell['settled'] else ', not settled'}"
        best = min((wall[who] for who in (OWN, GRAPHS) if who in wall), default=0.0)
        times = [f"{wall[who]:.0f}" if who in wall else "" for who in (EAGER, PEER, STATIC, OWN, GRAPHS)]
        ratios = [f"{wall[who] / best:.2f}" if best and who in wall else "" for who in (EAGER, PEER, STATIC)]
        kernels = cell["gpu_us"].get(OWN)
        over = f"{best / kernels:.2f}" if kernels else ""
        rows.append((name, *times, f"{kernels:.0f}" if kernels else "", *ratios, over, _furthest(cell["off"])))
    own = [OWN, "with graphs", "its kernels"]
    ratios = ["× eager", "× peer", "× peer's graphs", "wall / kernels", "off"]
    columns = ["model, shape", EAGER, PEER, STATIC, *own, *ratios]
    show(Table.from_rows("wall time of one call, µs; ratios of polytile's better way", columns, rows))
    compared = [cell["wall_us"] for cell in cells if {OWN, GRAPHS, PEER} <= cell["wall_us"].keys()]
    if over_peer := [wall[PEER] / min(wall[OWN], wall[GRAPHS]) for wall in compared]:
        print(f"the peer's dynamic compile / polytile: geomean {geomean(over_peer):.2f}, least {min(over_peer):.2f}")


def _furthest(errors: Mapping[str, float]) -> str:
    own = [errors[who] for who in (OWN, GRAPHS) if who in errors]
    return f"{max(own):.2g}" if own else ""


if __name__ == "__main__":
    main()
