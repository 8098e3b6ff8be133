"""Clusters under Triton's interpreter, which runs one program after another: each program is a thread that runs in turn
until it ends or waits at a barrier."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Program = Callable[..., None]
Place = tuple[int, int, int]


def cluster_executor(function: Any, count: int, grid: tuple[int, ...]) -> Any:
    """An executor that runs the interpreted `function` over a grid whose programs form clusters of `count` along the
    first axis."""
    from triton.runtime.interpreter import GridExecutor

    return GridExecutor(_Clusters(function.rewrite(), count), function.arg_names, grid)


class _Clusters:
    """Replaces an interpreted function: runs a cluster when its last program is due."""

    def __init__(self, program: Program, count: int) -> None:
        self.program, self.count = program, count
        self.__name__, self.__annotations__ = program.__name__, program.__annotations__
        self.__signature__ = inspect.signature(program)
        self.__globals__ = program.__globals__

    def __call__(self, **args: Any) -> None:
        from triton.runtime.interpreter import interpreter_builder

        x, y, z = interpreter_builder.grid_idx
        if x % self.count == self.count - 1:
            run(self.program, [(x - k, y, z) for k in reversed(range(self.count))], args)


def run(program: Program, places: Sequence[Place], args: Mapping[str, Any]) -> None:
    """Runs one program at each of `places`, in turns. Raises the first error of a program and abandons the others."""
    from triton.runtime.interpreter import interpreter_builder

    running = [_ProgramThread(program, place, args) for place in places]
    for one in running:
        one.cluster = running
    while running:
        for one in running:
            interpreter_builder.set_grid_idx(*one.place)
            one.take()
            if one.error is not None:
                raise one.error
        running = [one for one in running if not one.ended]


class _ProgramThread(threading.Thread):
    """A program that runs while it has its turn."""

    def __init__(self, program: Program, place: Place, args: Mapping[str, Any]) -> None:
        super().__init__(daemon=True)
        self.program, self.place, self.args = program, place, args
        self.mine, self.others = threading.Semaphore(0), threading.Semaphore(0)
        self.received: dict[tuple[int, int], Any] = {}
        self.cluster: Sequence[_ProgramThread] = ()
        self.ended = False
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        self.mine.acquire()
        try:
            self.program(**self.args)
        except Exception as error:
            self.error = error
        self.ended = True
        self.others.release()

    def take(self) -> None:
        """Lets the program run until it ends or waits at a barrier."""
        self.mine.release()
        self.others.acquire()

    def wait(self) -> None:
        self.others.release()
        self.mine.acquire()


def interpreted_cluster_barrier() -> None:
    """`pt_cluster_barrier` of a program of a cluster."""
    _turn().wait()


def interpreted_dsmem_init() -> None:
    """`pt_dsmem_init` of a program of a cluster."""


def interpreted_dsmem_send(value: Any, number: Any, turn: Any, split: Any, splits: Any) -> None:
    """`pt_dsmem_send` of a program of a cluster."""
    _turn().received[_int(number), _int(turn) % 2] = value


def interpreted_dsmem_wait(numbers: Any, turn: Any, splits: Any) -> None:
    """`pt_dsmem_wait` of a program of a cluster."""
    _turn().wait()


def interpreted_dsmem_read(which: Any, number: Any, turn: Any) -> Any:
    """`pt_dsmem_read` of a program of a cluster."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    values = [one.received[_int(number), _int(turn) % 2] for one in _turn().cluster]
    array = np.concatenate([value.handle.data.reshape(1) for value in values])
    return tl.tensor(TensorHandle(array, values[0].dtype), tl.block_type(values[0].dtype, [len(values)]))


def _int(value: Any) -> int:
    return int(value.handle.data.item() if hasattr(value, "handle") else value)


def _turn() -> _ProgramThread:
    turn = threading.current_thread()
    assert isinstance(turn, _ProgramThread), "a program waits for others outside of a cluster"
    return turn


def interpreted_cluster_arrive() -> None:
    """`pt_cluster_arrive`: does nothing, since `pt_cluster_wait` does the waiting."""


def interpreted_opaque(x: Any, zero: Any) -> Any:
    """`pt_opaque`: the identity."""
    return x
