"""`python -m benchmarks.gpu.whole_calls [--models llama decode ...] [--contestants polytile ...] [--seconds 240]`: single calls.

Wall time of Transformers of four and six layers in bfloat16 under `torch.inference_mode()`, at several shapes. Contestants:
eager; polytile, one dynamic compile by `polytile.compile`, without CUDA graphs, with them, and with them and `guards="tensors"`;
the peer's dynamic compile; the peer's compile for each shape with CUDA graphs.
Each has a process and caches of its own, but for polytile's three, which run the same kernels. All processes are made at once;
polytile's measure their candidates one at a time. Then calls are timed, model after model and shape after shape, the contestants
in turns. A call begins when the device is idle, and ends when it is idle again. Results are compared with eager's of the same
weights and inputs. Of polytile's calls there are also the time until they return, that of their parts, and what their graphs did.
Device time is told in two ways: the sum over all kernels, copies and fills of a call, by torch's profiler; and a call's share
of a graph of ten calls, captured by `torch.cuda.graph`, which includes what the device waits between kernels.

polytile tunes in the background until nothing is left, or until `--seconds` are nearly over; the table says which. Results go to
OUT/gpu_whole_calls.json after each shape. `--beside` keeps those cells of an earlier file that have a shape or a contestant more;
a cell's times, and so its ratios, are of one run. `--made` takes the cells of a file in place of making calls. `--show` prints a
file's tables.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import Entrant, Values, tune_in_turn
from benchmarks.gpu import host_time, models
from benchmarks.gpu.replay import kernel_times
from benchmarks.timing import geomean
from polytile.compiler import front_door
from polytile.compiler.programs import compiled_programs
from polytile.report import Table, show
from polytile.runtime.cuda.graphs import Numbers, ProgramGraphs

Run = Callable[..., Tensor]
Cell = dict[str, Any]

EAGER, OWN, GRAPHS, FEWER = "eager", "polytile", "polytile, graphs", "polytile, graphs, fewer guards"
PEER, STATIC = "peer, dynamic", "peer, each shape, graphs"
PROCESSES = {EAGER: (EAGER,), OWN: (OWN, GRAPHS, FEWER), PEER: (PEER,), STATIC: (STATIC,)}
"""The contestants of each process."""
COMPILED: dict[str, Callable[[Run], Run]] = {
    OWN: functools.partial(polytile.compile, options={"stall": "never"}),
    GRAPHS: functools.partial(polytile.compile, options={"stall": "never", "cuda_graphs": "auto"}),
    FEWER: functools.partial(polytile.compile, options={"stall": "never", "cuda_graphs": "auto"}, guards="tensors"),
    PEER: functools.partial(torch.compile, dynamic=True),
    STATIC: functools.partial(torch.compile, dynamic=False, mode="reduce-overhead"),
}
"""What compiles for each."""
ROUNDS, CALLS = 5, 10
"""Turns of each contestant at a shape, and calls of a turn."""
CALMED, SETTLED_CALLS = 4, 30
"""How often polytile is waited for after tuning, and calls before each: C is compiled and takes over, and CUDA graphs are made of
launches that come again."""
CALM_SECONDS, SHAPE_SECONDS = 8, 3
"""Seconds that these calls are given, and timing a shape."""


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
        if OWN in compiled:
            tune_in_turn(OWN, Path(given["lock"]))

    def prepare(self, seconds: float) -> dict[str, Any]:
        """Compiles all, tunes for so long at most, and calls until CUDA graphs are made: seconds of the first calls of each, and
        whether nothing is left to tune."""
        until, took = time.monotonic() + seconds, {}
        with torch.inference_mode():
            for who, run in self.runs.items():
                began = time.monotonic()
                self._all(run)
                took[who] = round(time.monotonic() - began, 2)
            settled = OWN not in self.runs or self._tuned(until - CALM_SECONDS)
            for _ in range(CALMED if OWN in self.runs else 1):
                for run in self.runs.values():
                    for _ in range(SETTLED_CALLS):
                        self._all(run)
                polytile.wait(timeout=CALM_SECONDS / CALMED)
        return {"first_s": took, "settled": settled}

    def _all(self, run: Any) -> None:
        for arguments in self.arguments:
            run(*arguments)
        torch.cuda.synchronize()

    def _tuned(self, until: float) -> bool:
        settled = False
        while not settled and time.monotonic() < until:
            for run in self.runs.values():
                self._all(run)
            settled = host_time.settle(until)
        return settled

    def single(self, who: str, place: int) -> list[list[float]]:
        """Microseconds of calls at a shape, each until the device has ended, and until it returns."""
        with torch.inference_mode():
            return timed(functools.partial(self.runs[who], *self.arguments[place]))

    def parts(self, who: str, place: int) -> dict[str, list[float]]:
        """Microseconds of parts of a call, each called alone, until the device has ended and until they return: Dynamo's guards,
        which ask for nothing of the device; the code that Dynamo made, which the guards choose; the program in C, which that code
        calls. Raises RuntimeError if a call does not consist of these."""
        arguments, door = self.arguments[place], front_door.door_of(self.runs[who])
        if door is None or door.entry is None or door.refusals:
            raise RuntimeError(f"calls have no front door: {door}")
        with torch.inference_mode():
            self.runs[who](*arguments)
            chosen = door.entry.managers[0]()
            cached = next(each for each in door.entries() if each.guard_manager is chosen)
            function = door.called_function()
            assert function is not None
            code: Any = front_door.as_function(cached.code, function)
            program, given = self._program(functools.partial(code, *arguments))
            calls: dict[str, Callable[[], Any]] = {
                "guards": functools.partial(door.entry.find, *arguments),
                "code": functools.partial(code, *arguments),
                "program": lambda: program(list(given)),
            }
            turns = [{name: timed(call) for name, call in calls.items()} for _ in range(ROUNDS)]
        return {
            name: [round(statistics.median(us for turn in turns for us in turn[name][k]), 1) for k in (0, 1)] for name in calls
        }

    def _program(self, call: Callable[[], Any]) -> tuple[Any, list[Any]]:
        """The program in C that a call runs, and its arguments."""
        seen: list[tuple[Any, list[Any]]] = []
        for compiled in compiled_programs():
            program: Any = getattr(compiled.call, "__globals__", {}).get("serve")
            if hasattr(program, "look_at"):
                program.look_at(functools.partial(_seen, seen, program), 1)
        call()
        if len(seen) != 1:
            raise RuntimeError(f"a call is made by {len(seen)} programs in C")
        return seen[0]

    def kernels(self, who: str, place: int) -> list[float]:
        """Microseconds of a call's kernels, and how many there are."""
        with torch.inference_mode():
            return list(host_time.kernels(functools.partial(self.runs[who], *self.arguments[place]))[:2])

    def captured(self, who: str, place: int) -> float | None:
        """Microseconds that the device takes for a call in a graph of such calls; None if they cannot be captured."""
        with torch.inference_mode():
            return kernel_times({who: functools.partial(self.runs[who], *self.arguments[place])}, places=1).get(who)

    def graphs(self) -> dict[str, int]:
        """What CUDA graphs did in all calls so far (`Numbers`)."""
        every = [getattr(program.call, "cuda_graphs", None) for program in compiled_programs()]
        found = [one for graphs in every if isinstance(graphs, ProgramGraphs) and (one := graphs.numbers()) is not None]
        return {each.name: sum(getattr(one, each.name) for one in found) for each in fields(Numbers)}

    def keep(self, who: str, place: int, file: str) -> None:
        """Writes the result at a shape to a file."""
        with torch.inference_mode():
            np.save(file, self.runs[who](*self.arguments[place]).float().cpu().numpy())


def timed(call: Callable[[], Any]) -> list[list[float]]:
    """What `host_time.timed` gives, after one call more."""
    call()
    return list(host_time.timed(call, CALLS))


def _seen(seen: list[tuple[Any, list[Any]]], program: Any, arguments: Sequence[Any]) -> int:
    seen.append((program, list(arguments)))
    return 0  # shows no further call


def main() -> None:
    parser = Command(__doc__, "gpu_whole_calls", lambda found: report(found["cells"]), out=True)
    parser.add_argument("--models", nargs="+", choices=list(host_time.CASES), default=list(host_time.CASES))
    parser.add_argument("--contestants", nargs="+", choices=list(PROCESSES), default=list(PROCESSES))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--beside", type=Path, help="a file whose cells are kept where this run has none")
    parser.add_argument("--made", type=Path, help="a file of a run that was made elsewhere; needs no GPU")
    given = parser.parsed()
    before = dated(given.beside) if given.beside else []
    if given.made is not None:
        made = json.loads(given.made.read_text())
        made["results"]["cells"] = beside(before, dated(given.made))
        (given.out / "gpu_whole_calls.json").write_text(json.dumps(made, indent=1) + "\n")
        return
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu.whole_calls needs an NVIDIA GPU; this process sees none.")
    cells: list[Cell] = []
    for cell in measure(given.models, given.contestants, given.seconds):
        cells.append(cell)
        found = {"device": torch.cuda.get_device_name(), "cells": beside(before, cells)}
        path = record.write("gpu_whole_calls", found, given.out)
        print(line(cell), flush=True)
    report(cells)
    print(path)


def dated(file: Path) -> list[Cell]:
    """The cells of a file, with the date and revision of their run."""
    found = json.loads(file.read_text())
    environment = found["environment"]
    run = {"date": environment["date"][:16].replace("T", " "), "revision": environment["revision"]}
    return [run | cell for cell in found["results"]["cells"]]


def beside(before: Sequence[Cell], cells: Sequence[Cell]) -> list[Cell]:
    """The cells, and those of an earlier run that have a shape or a contestant more."""
    newer = {(cell["model"], *cell["shape"]): cell["wall_us"].keys() for cell in cells}
    kept = [cell for cell in before if not cell["wall_us"].keys() <= newer.get((cell["model"], *cell["shape"]), set())]
    return [*kept, *cells]


def measure(names: Sequence[str], contestants: Sequence[str], seconds: float) -> Iterator[Cell]:
    """The cells of these models, as they are timed."""
    until = time.monotonic() + seconds - SHAPE_SECONDS * sum(len(host_time.CASES[name].shapes) for name in names)
    with contextlib.ExitStack() as stack:
        lock = f"{stack.enter_context(tempfile.TemporaryDirectory())}/lock"
        entrants = {
            (name, who): stack.enter_context(
                Entrant("benchmarks.gpu.whole_calls:Contestant", {"model": name, "contestants": PROCESSES[who], "lock": lock})
            )
            for name in names
            for who in contestants
        }
        threads = stack.enter_context(concurrent.futures.ThreadPoolExecutor(len(entrants)))
        prepared = dict(
            zip(entrants, threads.map(lambda entrant: _asked(entrant, until - time.monotonic()), entrants.values()), strict=True)
        )
        for (name, who), found in prepared.items():
            print(f"{name}, {who}: {found}", flush=True)
        for name in names:
            ready = {who: entrants[name, who] for who in contestants if "error" not in prepared[name, who]}
            for place, shape in enumerate(host_time.CASES[name].shapes):
                cell: Cell = {"model": name, "shape": list(shape), "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
                cell["settled"] = prepared.get((name, OWN), {}).get("settled", False)
                cell["first_s"] = {key: s for who in ready for key, s in prepared[name, who]["first_s"].items()}
                yield cell | at_shape(ready, place)


def _asked(entrant: Entrant, seconds: float) -> dict[str, Any]:
    try:
        found: dict[str, Any] = entrant.ask("prepare", seconds)
    except RuntimeError as error:
        return {"error": str(error)[:500]}
    return found


def at_shape(processes: Mapping[str, Entrant], place: int) -> Cell:
    """What the contestants of each process take at a shape, in turns, and how far their results are from eager's."""
    entrants = {who: entrant for process, entrant in processes.items() for who in PROCESSES[process]}
    order = list(entrants)
    samples: dict[str, tuple[list[float], list[float]]] = {who: ([], []) for who in order}
    before = processes[OWN].ask("graphs") if OWN in processes else {}
    for turn in range(ROUNDS):
        for who in order if turn % 2 else reversed(order):
            for kept, new in zip(samples[who], entrants[who].ask("single", who, place), strict=True):
                kept.extend(new)
    after = processes[OWN].ask("graphs") if OWN in processes else {}
    device = {who: entrants[who].ask("kernels", who, place) for who in order if who != FEWER}
    cell = {
        "wall_us": {who: round(statistics.median(whole), 1) for who, (whole, _) in samples.items()},
        "host_us": {who: round(statistics.median(host), 1) for who, (_, host) in samples.items()},
        "gpu_us": {who: found[0] for who, found in device.items()},
        "kernels": {who: found[1] for who, found in device.items()},
        "off": off(entrants, place),
        "graphs": {name: after[name] - (before[name] if name in Numbers.COUNTED else 0) for name in after},
    }
    return cell | (inside(processes[OWN], place) if OWN in processes else {})


def inside(entrant: Entrant, place: int) -> Cell:
    """What calls of polytile consist of, and the device's time as a captured graph."""
    found: Cell = {"parts_us": {}, "captured_us": None}
    try:
        for who in PROCESSES[OWN]:
            found["parts_us"][who] = entrant.ask("parts", who, place)
        found["captured_us"] = entrant.ask("captured", OWN, place)
    except RuntimeError as error:
        found["error"] = str(error)[:500]
    return found


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


def line(cell: Cell) -> str:
    """A cell in a line."""
    times = [f"{who} {wall:.0f} (returns after {cell['host_us'][who]:.0f})" for who, wall in cell["wall_us"].items()]
    device = [f"{who} {us:.0f}" for who, us in cell["gpu_us"].items()]
    captured = [f"captured {cell['captured_us']:.0f}"] if cell.get("captured_us") else []
    inner = [
        f"{who} {', '.join(f'{part} {whole:.0f} ({host:.0f})' for part, (whole, host) in parts.items())}"
        for who, parts in cell.get("parts_us", {}).items()
    ]
    told = [f"wall {', '.join(times)}", f"kernels {', '.join(device + captured)}", *inner, f"graphs: {graphs_of(cell)}"]
    return f"{name_of(cell)}: " + "; ".join([*told, cell["error"]] if "error" in cell else told)


def graphs_of(cell: Cell) -> str:
    """What graphs did for the calls that were timed: how many stretches a call had, in which ways they were made, what ended
    them."""
    found = cell["graphs"]
    if not isinstance(found, dict) or not found.get("calls"):
        return "none"
    ways = {name: found[name] for name in ("followed", "replayed", "updated", "direct", "busy", "short", "rested", "refused")}
    ways["replayed"] -= ways["followed"]
    ended = {name.removeprefix("to_"): found[name] for name in found if name.startswith("to_")}
    told = [", ".join(f"{name} {count / found['calls']:.3g}" for name, count in each.items() if count) for each in (ways, ended)]
    return f"{told[0]} a call; ended by {told[1]}"


def name_of(cell: Cell) -> str:
    return f"{cell['model']} {'×'.join(map(str, cell['shape']))}{'' if cell['settled'] else ', not settled'}"


def report(cells: Sequence[Cell]) -> None:
    """The time of a call at each shape, and what it is beside eager's and the peer's; then what polytile's calls consist of."""
    rows = []
    for cell in cells:
        wall = cell["wall_us"]
        best = min((wall[who] for who in (OWN, GRAPHS) if who in wall), default=0.0)
        times = [f"{wall[who]:.0f}" if who in wall else "" for who in (EAGER, PEER, STATIC, OWN, GRAPHS, FEWER)]
        ratios = [f"{wall[who] / best:.2f}" if best and who in wall else "" for who in (EAGER, PEER, STATIC)]
        kernels = cell["gpu_us"].get(OWN)
        over = [f"{us / kernels:.2f}" if kernels and us else "" for us in (best, wall.get(FEWER))]
        name = [name_of(cell), cell.get("date", "")]
        rows.append((*name, *times, f"{kernels:.0f}" if kernels else "", *ratios, *over, _furthest(cell["off"])))
    own = [OWN, "with graphs", "and fewer guards", "its kernels"]
    ratios = ["× eager", "× peer", "× peer's graphs", "wall / kernels", "fewer guards / kernels", "off"]
    columns = ["model, shape", "run", EAGER, PEER, STATIC, *own, *ratios]
    show(Table.from_rows("wall time of one call, µs; ratios of polytile's better way with all guards", columns, rows))
    compared = [cell["wall_us"] for cell in cells if {OWN, GRAPHS, PEER} <= cell["wall_us"].keys()]
    if over_peer := [wall[PEER] / min(wall[OWN], wall[GRAPHS]) for wall in compared]:
        print(f"the peer's dynamic compile / polytile: geomean {geomean(over_peer):.2f}, least {min(over_peer):.2f}")
    consists_of([cell for cell in cells if FEWER in cell.get("parts_us", {})])


def consists_of(cells: Sequence[Cell]) -> None:
    """What polytile's calls with graphs consist of."""
    rows = []
    for cell in cells:
        parts, fewer = cell["parts_us"][GRAPHS], cell["parts_us"][FEWER]
        times = [parts["guards"][1], fewer["guards"][1], parts["code"][1], parts["program"][1], parts["program"][0]]
        times += [cell["gpu_us"][OWN], cell["captured_us"] or float("nan")]
        rows.append((name_of(cell), *(f"{us:.0f}" for us in times), graphs_of(cell)))
    host = ["guards", "fewer guards", "code, until it returns", "program, until it returns"]
    device = ["program, until the device ends", "its kernels", "as one graph"]
    if rows:
        show(Table.from_rows("parts of calls with graphs, µs", ["model, shape", *host, *device, "graphs"], rows))


def _furthest(errors: Mapping[str, float]) -> str:
    own = [errors[who] for who in (OWN, GRAPHS) if who in errors]
    return f"{max(own):.2g}" if own else ""


if __name__ == "__main__":
    main()
