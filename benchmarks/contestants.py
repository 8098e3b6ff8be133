"""A contestant in a process and with caches of its own.

Compilers keep what they have compiled and measured in the process and on disk, and find it again by the code alone: a contestant
that is compiled after another, with other hints or in another mode, may be given the other's kernels. So each has a process, and
directories for caches that begin empty; what it is to do is a function of a module, which takes and gives values of JSON. Several
may compile at a time; what is measured is measured in turns, under a lock file.
"""

from __future__ import annotations

import compileall
import contextlib
import faulthandler
import fcntl
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import Call, Elsewhere, burst, processor_seconds

ROOT = Path(__file__).resolve().parent.parent
CACHES = {
    "POLYTILE_CACHE_DIR": "polytile",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "TMPDIR": "tmp",
}
"""Environment variables that say where compilers keep things, and the directory of each."""
ONCE = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
"""What compilers do once for a cache directory is left out, since here each program would wait for it: the peer compiles its C++
headers ahead."""
COMPILERS = ("POLYTILE_COMPILE_WORKERS", "TORCHINDUCTOR_COMPILE_THREADS")
"""Environment variables that say how many compilers may run at a time."""
LATE = "did not end in time"
OWN = "polytile"

Values = Mapping[str, Any]
Function = Callable[..., Any]


@contextlib.contextmanager
def own_caches(compilers: int = 0, root: Path = ROOT) -> Iterator[dict[str, str]]:
    """The environment of a process whose caches are empty now and removed in the end, and which imports the package and the
    benchmarks of the tree at `root`; at most so many compilers run at a time (0: as many as each compiler runs by itself).
    polytile's modules have their bytecode beside them, as an installer leaves them, and as torch's have."""
    compileall.compile_dir(root / "src", quiet=1)
    with tempfile.TemporaryDirectory(prefix="contestant-", ignore_cleanup_errors=True) as directory:
        paths = {variable: str(Path(directory) / name) for variable, name in CACHES.items()}
        for path in paths.values():
            Path(path).mkdir(mode=0o700)
        few = {variable: str(compilers) for variable in COMPILERS} if compilers else {}
        modules = filter(None, (str(root), str(root / "src"), os.environ.get("PYTHONPATH")))
        yield {**os.environ, "PYTHONPATH": os.pathsep.join(modules), **ONCE, **paths, **few}


class Processes:
    """Makes a process for each contestant, one after the other: a new one, or, where modules to import are `shared`, one that is
    forked from a process which has imported these and has compiled and run nothing. That saves the seconds of importing; it
    must not be done where importing them wakes a GPU."""

    def __init__(self, compilers: int = 0, shared: Sequence[str] = ()) -> None:
        self.compilers = compilers
        self._parent: subprocess.Popen[str] | None = None
        if shared:
            with own_caches(compilers) as variables:
                self._parent = _talking(_command({"shared": shared}), variables)

    def run(
        self, function: str, given: Values, seconds: float, variables: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """What "package.module:function" gives for `given`; {"error"} where it gives nothing: what was raised or last said, or
        LATE where it takes longer than these seconds and is ended. With `variables`, an environment of `own_caches`, it finds
        what those that were run with them have left there."""
        if variables is None:
            with own_caches(self.compilers) as new:
                return self.run(function, given, seconds, new)
        place = Path(variables["TMPDIR"]).parent
        said, result = place / "said.txt", place / "result.json"
        result.unlink(missing_ok=True)
        task = {"function": function, "given": dict(given), "result": str(result)}
        start = self._forked if self._parent is not None else _new
        status = start(task, variables, said, seconds)
        text = said.read_text(errors="replace") if said.exists() else ""
        if result.exists():
            warned = [line for line in text.splitlines() if "polytile" in line and "Warning" in line]
            return {**json.loads(result.read_text()), **({"warned": warned[:5]} if warned else {})}
        return {"error": LATE if status is None else f"ended with status {status}: {text[-1500:]}"}

    def _forked(self, task: Values, variables: Values, said: Path, seconds: float) -> int | None:
        assert self._parent is not None and self._parent.stdin is not None and self._parent.stdout is not None
        request = {"task": task, "variables": variables, "said": str(said), "seconds": seconds}
        self._parent.stdin.write(json.dumps(request) + "\n")
        self._parent.stdin.flush()
        status: int | None = json.loads(self._parent.stdout.readline())
        return status

    def close(self) -> None:
        if self._parent is not None and self._parent.stdin is not None:
            self._parent.stdin.close()
            self._parent.wait()


def alone(
    function: str, given: Values, seconds: float = 3600, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """`Processes.run` in one new process. Raises RuntimeError with its last words where it gives nothing."""
    found = Processes().run(function, given, seconds, variables)
    if "error" in found:
        raise RuntimeError(f"{function} of {dict(given)} gave nothing: {found['error']}")
    return found


class Entrant:
    """A contestant that stays, to be timed in turns with others: an object in a new process with caches of its own, made there by
    "package.module:name" of `given`. `ask` calls its methods, with and for values of JSON."""

    def __init__(self, make: str, given: Values) -> None:
        self._start(_command({"make": make, "given": dict(given)}), ROOT)

    def _start(self, command: Sequence[str], root: Path) -> None:
        """Starts a process that answers as `stay` does, in the tree at `root`."""
        self._open = contextlib.ExitStack()
        variables = self._open.enter_context(own_caches(root=root))
        self._process = _talking(command, variables, root)
        self._open.callback(self._process.wait)
        self._open.callback(_end, self._process.pid)

    def __enter__(self) -> Entrant:
        return self

    def __exit__(self, *_: Any) -> None:
        self._open.close()

    @property
    def ended(self) -> bool:
        """Whether its process has ended by itself."""
        return self._process.poll() is not None

    def ask(self, method: str, *values: Any) -> Any:
        """Raises RuntimeError with what the method raises there."""
        assert self._process.stdin is not None and self._process.stdout is not None
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([method, *values]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        found = json.loads(answer) if answer else {"error": f"its process ended with status {self._process.wait()}"}
        if "error" in found:
            raise RuntimeError(f"{method}{values} of a contestant: {found['error']}")
        return found["value"]

    def call(self, way: str) -> Elsewhere:
        """One of its calls, for `timing.compare`: the object has a method `burst(way, calls)`."""
        return Elsewhere(
            self._process.pid, functools.partial(self.ask, "burst", way), functools.partial(self.ask, "processor")
        )


class Calls:
    """What the object of an Entrant is at least: calls by name, which are timed where they are."""

    calls: dict[str, Call]

    def burst(self, way: str, calls: int) -> float:
        return burst(self.calls[way], calls)

    def processor(self) -> float:
        return processor_seconds()


def _command(task: Values) -> list[str]:
    return [sys.executable, "-m", "benchmarks.contestants", json.dumps(task)]


def _talking(command: Sequence[str], variables: Mapping[str, str], root: Path = ROOT) -> subprocess.Popen[str]:
    """A new process that is asked, and answers, line by line."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=variables, cwd=root, text=True, stdin=pipe, stdout=pipe, start_new_session=True)


def _new(task: Values, variables: Mapping[str, str], said: Path, seconds: float) -> int | None:
    """The status of a new process; None where it took longer. A task may be longer than a command line can be."""
    asked = said.with_name("task.json")
    asked.write_text(json.dumps(task))
    command = _command({"file": str(asked)})
    with said.open("w") as file:
        process = subprocess.Popen(
            command, env=dict(variables), cwd=ROOT, stdout=file, stderr=file, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process.pid)
            process.wait()


def interrupt(process: subprocess.Popen[Any], seconds: float) -> None:
    """Ends a process by SIGINT if it runs, and if it still runs after these seconds, at once."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end(group: int) -> None:
    """Ends what is left of a contestant's process group: its compilers too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


# in a contestant's process -----------------------------------------------------------------------------------------------


def carry_out(task: Values) -> None:
    """Calls the function that is asked for and writes what it gives, or what it raises, to the file that is asked for."""
    try:
        module, _, name = task["function"].partition(":")
        found = getattr(importlib.import_module(module), name)(task["given"])
    except Exception as error:
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {str(error)[:1500]}"}
    Path(task["result"]).write_text(json.dumps(found))


def serve(shared: Sequence[str]) -> None:
    """Forks a process for each request on the standard input, and answers with its status, or null where it took too long."""
    for name in shared:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            os.setsid()
            os.environ.update(request["variables"])
            with open(request["said"], "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            try:
                carry_out(request["task"])
            finally:
                os._exit(0)
        status = _status(process, time.monotonic() + request["seconds"])
        _end(process)
        if status is None:
            os.waitpid(process, 0)
        print(json.dumps(status), flush=True)


def _status(process: int, until: float) -> int | None:
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def stay(make: str, given: Values) -> None:
    """Makes an object and calls its methods as the standard input asks. What is printed goes to the standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        made: Any = None
        for line in sys.stdin:
            method, *values = json.loads(line)
            try:
                if made is None:
                    module, _, name = make.partition(":")
                    made = getattr(importlib.import_module(module), name)(given)
                found = {"value": getattr(made, method)(*values)}
            except Exception as error:
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {str(error)[:1500]}"}
            answers.write(json.dumps(found) + "\n")
            answers.flush()


_held: set[Path] = set()
"""Lock files that this process holds."""


@contextlib.contextmanager
def turn(lock: Path | None) -> Iterator[None]:
    """Within the block no other process holds this lock file. None: no lock. A turn within a turn is the same one."""
    if lock is None or lock in _held:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _held.add(lock)
        try:
            yield
        finally:
            _held.discard(lock)


def tune_in_turn(contestant: str, lock: Path | None) -> None:
    """From now on polytile, or else the peer, measures its candidates in this process while no other holds the lock."""
    if lock is None:
        return

    def taken(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with turn(lock):
                return function(*args, **kwargs)

        return call

    if contestant == OWN:
        from polytile.tuning import racing

        racing.race = taken(racing.race)
        return
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner  # noqa: TID251 (the peer's own tuning)
    from torch._inductor.select_algorithm import AlgorithmSelectorCache as Templates  # noqa: TID251 (of its templates)

    setattr(CachingAutotuner, "benchmark_all_configs", taken(CachingAutotuner.benchmark_all_configs))  # noqa: B010
    own = vars(Templates)["benchmark_choices"]  # a class method, or a static one, as the version has it
    setattr(Templates, "benchmark_choices", type(own)(taken(own.__func__)))  # noqa: B010


__all__ = ["LATE", "ONCE", "OWN", "Calls", "Entrant", "Processes", "alone", "own_caches", "tune_in_turn", "turn"]

if __name__ == "__main__":
    faulthandler.enable()  # the last words of one that crashes
    asked = json.loads(sys.argv[1])
    if "shared" in asked:
        serve(asked["shared"])
    elif "make" in asked:
        stay(asked["make"], asked["given"])
    else:
        carry_out(json.loads(Path(asked["file"]).read_text()))
