"""`python -m benchmarks.stream`: a server meets requests of random sizes, from empty caches, and no kernel is there.

Each contestant serves the same stream in a process of its own: eager; aot_eager, which traces and then runs ATen's operators;
the peer's dynamic compile; polytile with each value of the option `stall`. Each call is timed from outside, on a GPU until its
result is there. With --warm a second process then serves it with the caches that the first has left. Every result is compared
with eager's.

--seconds limits everything: a contestant serves as many requests as its share of the time allows. With --calls a stream can be
measured in pieces: a contestant that the file has for this stream is not run again. --stacks samples where the
caller is in calls that wait, which disturbs them a little. --show prints the tables of the committed results.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.contestants import ONCE, Processes, own_caches
from benchmarks.stream.judge import TIER0, judged
from benchmarks.stream.report import NOTES, counters_table, late_table, stream_table
from benchmarks.stream.serving import COMPILE
from benchmarks.stream.workloads import WORKLOADS
from polytile.report import show

DEVICES = ("cpu", "cuda")
COLD_ONLY = ("eager", TIER0)
"""Contestants that leave nothing in caches."""
GRACE = 20.0
"""Seconds after which a process that does not end by itself is ended."""
FOREVER = 7 * 86400.0
WARM = ", warm"
REQUESTS = 300
"""Of a stream, unless the command says otherwise; results of others are kept beside them."""


class Streams:
    """Streams of requests, within the limits that were given."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.deadline = time.time() + min(given.seconds, FOREVER)
        self.left = len(given.workloads) * sum(len(self._kinds(name)) for name in given.contestants)

    def _kinds(self, contestant: str) -> tuple[str, ...]:
        """The processes of a contestant: from empty caches, and with those that the first has left."""
        wanted = self.given.warm is not None and (contestant in self.given.warm or not self.given.warm)
        return ("", WARM) if wanted and contestant not in COLD_ONLY else ("",)

    def of(self, workload: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each contestant's name and what `serving.run` gave for it, or {"error"}, as they end."""
        given, expected = self.given, list[float]()
        sizes = WORKLOADS[workload].requests(given.device, given.requests, given.seed)
        task = {
            "workload": workload, "device": given.device, "requests": [[one.batch, one.length] for one in sizes],
            "synchronised": not given.unsynchronised, "stacks": given.stacks,
        }  # fmt: skip
        for name in given.contestants:
            if known := self._known(workload, name):
                self.left -= len(known)
                expected = known[0][1].get("seconds", []) if name == TIER0 else expected
                yield from known
                continue
            with ExitStack() as open_caches:
                caches = open_caches.enter_context(own_caches())
                variables = {name: value for name, value in caches.items() if name not in ONCE}  # as who uses them has them
                for kind in self._kinds(name):
                    found = self._run({**task, "contestant": name, "expected": expected}, variables)
                    if name == TIER0:
                        expected = found.get("seconds", [])
                    yield name + kind, found

    def asked(self, workload: str) -> dict[str, Any]:
        """What tells one stream from another."""
        given = self.given
        return {"workload": workload, "device": given.device, "requests": given.requests, "seed": given.seed}

    def _known(self, workload: str, contestant: str) -> list[tuple[str, dict[str, Any]]]:
        """A contestant's processes and what was found for them earlier, if it was for all of them."""
        file, names = self.given.calls, [contestant + kind for kind in self._kinds(contestant)]
        if file is None or not file.exists():
            return []
        lines = map(json.loads, file.read_text().splitlines())
        found = {line["contestant"]: line for line in lines if line["asked"] == self.asked(workload) and "error" not in line}
        return [(name, found[name]) for name in names] if all(name in found for name in names) else []

    def _run(self, task: dict[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
        share = max(0.0, self.deadline - time.time()) / self.left
        self.left -= 1
        task["until"] = time.time() + share
        return Processes().run("benchmarks.stream.serving:run", task, share + GRACE, variables)


def tables(workload: str, device: str, result: Mapping[str, Any]) -> None:
    """Prints what one workload came to."""
    what, requests = WORKLOADS[workload].what, result["requests"]
    title = f"{what}, {device}: {requests} requests of random sizes"
    show(stream_table(title, requests, result["contestants"]))
    show(counters_table(f"{what}: what polytile did", result["contestants"]))
    for name, one in result["contestants"].items():
        if any(late["stacks"] for late in one.get("late", ())):
            show(late_table(f"{what}, {name}: the calls that waited longest", one["late"]))


def main(arguments: Sequence[str] | None = None) -> None:
    given = parsed(arguments)
    if given.show:
        show_all(given.out)
        return
    streams = Streams(given)
    for workload in given.workloads:
        result = measured(streams, workload)
        tables(workload, result["device"], result)
        if given.json:
            longer = "" if given.requests == REQUESTS else f", {given.requests}"
            record.add(f"stream_{given.device}", "workloads", {workload + longer: result}, given.out)


def show_all(directory: Path) -> None:
    """Prints the tables of every result file there is, and what their columns mean."""
    for device in DEVICES:
        file = directory / f"stream_{device}.json"
        if file.exists():
            for workload, result in record.read(file)["workloads"].items():
                tables(workload.partition(",")[0], result["device"], result)
    print("\n\n".join(NOTES))


def measured(streams: Streams, workload: str) -> dict[str, Any]:
    """What stands in the result file of one workload. Prints which results are wrong, and what polytile failed to compile."""
    given, runs = streams.given, dict[str, dict[str, Any]]()
    for name, found in streams.of(workload):
        runs[name] = found
        print(f"{workload}, {name}: {found.get('error') or round(sum(found['seconds']), 2)} s", file=sys.stderr, flush=True)
        if given.calls and "asked" not in found:
            with given.calls.open("a") as file:
                file.write(json.dumps({**found, "asked": streams.asked(workload), "contestant": name}) + "\n")
    requests = WORKLOADS[workload].requests(given.device, given.requests, given.seed)
    sizes, tolerance = [(one.batch, one.length) for one in requests], WORKLOADS[workload].tolerance[given.device]
    cells = {name: judged(run, runs, sizes, tolerance) for name, run in runs.items()}
    for name, cell in cells.items():
        for what in ("wrong", "failures"):
            for line in cell.get(what, ())[:3]:
                print(f"{what.upper()}: {workload}, {name}, {line}", flush=True)
    return {
        "requests": len(sizes), "seed": given.seed, "synchronised": not given.unsynchronised, "stacks": given.stacks,
        "device": next((run["device"] for run in runs.values() if "device" in run), given.device), "contestants": cells,
    }  # fmt: skip


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--contestants", nargs="+", choices=list(COMPILE), default=list(COMPILE))
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--seed", type=int, default=0, help="of the sizes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for everything, in shares")
    parser.add_argument("--warm", nargs="*", choices=list(COMPILE), help="also a second process, of these contestants or of all")
    parser.add_argument("--unsynchronised", action="store_true", help="on a GPU: time calls until they return")
    parser.add_argument("--stacks", action="store_true", help="sample where the caller is in calls that wait")
    parser.add_argument("--calls", type=Path, help="a file of every call's times: what it lacks is run and appended")
    parser.add_argument("--json", action="store_true", help="also write stream_DEVICE.json")
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="the directory of that file")
    parser.add_argument("--show", action="store_true", help="only print the tables of these files")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
