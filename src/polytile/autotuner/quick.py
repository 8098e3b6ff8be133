"""The fast path for launches of an autotuned kernel that resemble earlier ones.

C code reads from the arguments what Triton specialises a kernel on (runtime/kinds.c). Calls that agree in it share a Route: the
MultiKernel that chooses for them, and the compiled kernel of each config. Everything unusual takes Triton's own launch: arguments
other than tensors on one device, numbers, constants and None; launch options; hooks; tracing by other threads.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from triton import knobs
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from polytile.autotuner.launching import launcher_of
from polytile.dispatch.conditions import changing
from polytile.dispatch.multikernel import MultiKernel
from polytile.runtime import native
from polytile.runtime.arguments import CPU, CUDA

MOST_ROUTES = 4096
"""Maximum number of routes, and of sizes per route; beyond it, all are dropped."""

ABSENT = object()
RUNTIME = knobs.runtime

Binding = tuple[Any, tuple[Any, ...]]
"""The grid, and the arguments in the order of the parameters."""

tracing: Callable[[], Any] = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: True)
"""Returns None unless Dynamo may inspect the frames that this thread enters."""


class Prepared:
    """A compiled kernel with the parameters that its config sets, as (position, value). `tail` holds only the values if these are
    the last parameters, as in most kernels. `start` is polytile's launcher of it (launching.py), if there is one."""

    __slots__ = ("kernel", "names", "settings", "start", "stream", "tail")

    def __init__(self, quick: Quick, kernel: Any, settings: tuple[tuple[int, Any], ...]) -> None:
        device = quick.current_device()
        self.kernel, self.names, self.settings = kernel, quick.names, settings
        self.stream = functools.partial(driver.active.get_current_stream, device)
        self.start = launcher_of(kernel, quick.names, device, quick.device_type)
        last = sorted(settings)
        trailing = [position for position, _ in last] == list(range(len(quick.names) - len(last), len(quick.names)))
        self.tail = tuple(value for _, value in last) if trailing else None

    def launch(self, grid: Any, values: tuple[Any, ...]) -> Any:
        """Launch the kernel as JITFunction.run does, and return the compiled kernel."""
        if self.tail is not None:
            given: Any = values[: len(values) - len(self.tail)] + self.tail
        else:
            changed = list(values)
            for position, value in self.settings:
                changed[position] = value
            given = tuple(changed)
        if callable(grid):
            grid = grid(dict(zip(self.names, given)))  # noqa: B905  # lengths are equal, and checking costs time
        enter, leave = RUNTIME.launch_enter_hook, RUNTIME.launch_exit_hook
        hooked = getattr(enter, "calls", enter) or getattr(leave, "calls", leave)
        if hooked or self.start is None or self.start(given, grid) != 0:
            self._launch_by_triton(grid, given, enter, leave, hooked)
        return self.kernel

    def _launch_by_triton(self, grid: Any, given: tuple[Any, ...], enter: Any, leave: Any, hooked: Any) -> None:
        """Triton raises its own error where a launch fails."""
        x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
        kernel, stream, metadata = self.kernel, self.stream(), None
        if hooked:
            metadata = kernel.launch_metadata(grid, stream, *given)
        else:
            enter = leave = None
        kernel._run(x, y, z, stream, kernel.function, kernel.packed_metadata, metadata, enter, leave, *given)


class Route:
    """What calls of one kind share.

    Attributes
    ----------
    made
        The MultiKernel that chooses a config.
    pick
        Selects from a call's arguments those of the MultiKernel: `tensors` tensors, then sizes.
    kernels
        Compiled kernels, by what launches them.
    kept
        Constants that the kind refers to by address.
    """

    __slots__ = ("kept", "kernels", "made", "pick", "sizes", "tensors")

    def __init__(self, made: MultiKernel | None, pick: Callable[[Any], Any], tensors: int, kept: tuple[Any, ...]) -> None:
        self.made, self.pick, self.tensors, self.kept = made, pick, tensors, kept
        self.kernels: dict[Any, Prepared] = {}
        self.sizes: set[tuple[int, ...]] = set()
        """Sizes that are known to be decided."""

    def is_decided(self, sizes: tuple[int, ...]) -> bool:
        """Whether a choice has been made at these sizes; remembers the answer if so."""
        assert self.made is not None
        if self.made.dispatcher.get(self.made.dispatcher.key_of(*sizes)) is None:
            return False
        if len(self.sizes) >= MOST_ROUTES:
            self.sizes.clear()
        self.sizes.add(sizes)
        return True


class Quick:
    """The routes of one autotuner for the kernel `jit`."""

    def __init__(self, jit: JITFunction[Any], keys: tuple[str, ...], kinds_of: Callable[..., bytes | None]) -> None:
        self.jit, self.names, self.kinds_of = jit, tuple(jit.arg_names), kinds_of
        constants = {self.names[position] for position in jit.constexprs}
        self.constants = tuple(position for position, name in enumerate(self.names) if name in constants)
        letters = ("c" if name in constants else "k" if name in keys else "v" for name in self.names)
        self.codes = "".join(letters).encode()
        self.bind = _binder(jit)
        self.routes: dict[tuple[Any, ...], Route] = {}

    @staticmethod
    def of(fn: Any, keys: list[str]) -> Quick | None:
        """None if every launch must go through Triton: heuristics compute arguments, an interpreter runs the kernel, or there is
        no C module."""
        module = native.module(quietly=True) if type(fn) is JITFunction else None
        return None if module is None else Quick(fn, tuple(keys), module.kinds_of)

    def key_of(self, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """What launches with these arguments share; None for unusual arguments."""
        kinds = self.kinds_of(values, self.codes, self.device_type)
        return None if kinds is None else (kinds, self.current_device(), changing())

    @functools.cached_property
    def device_type(self) -> int:
        """torch's number for the device type of kernels. A number that no tensor has if Triton's backend specialises on more than
        kinds.c distinguishes, as AMD's does on tensor sizes."""
        if driver.active.get_current_target().backend != "cuda":
            return -1
        return CPU if driver.active.get_active_torch_device().type == "cpu" else CUDA

    @functools.cached_property
    def current_device(self) -> Callable[[], int]:
        """Triton's function for the index of the current device."""
        current: Callable[[], int] = driver.active.get_current_device
        return current

    def prepare(self, route: Route, by: Any, config: Any, kernel: Any) -> None:
        """Keep the compiled kernel of a config for later launches."""
        kernel = kernel.result() if hasattr(kernel, "result") else kernel
        if getattr(kernel, "_run", None) is None or not self.usual():
            return
        settings = tuple((self.names.index(name), value) for name, value in config.kwargs.items() if name in self.names)
        route.kernels[by] = Prepared(self, kernel, settings)

    def usual(self) -> bool:
        """Whether no launch hooks are installed, and the global values with which the kernel was compiled are unchanged."""
        jit = self.jit
        if not jit.pre_run_hooks and not jit.used_global_vals:
            return True
        unchanged = (values.get(name, ABSENT) == value for (name, _), (value, values) in jit.used_global_vals.items())
        return not jit.pre_run_hooks and all(unchanged)

    def remember(
        self, key: tuple[Any, ...], made: MultiKernel | None, names: tuple[str, ...], tensors: int, values: tuple[Any, ...]
    ) -> Route:
        """The route of calls like the one with these arguments. `names` are the arguments with which `made` is called, `tensors`
        of them tensors."""
        if len(self.routes) >= MOST_ROUTES:
            self.routes.clear()
        positions = [self.names.index(name) for name in names]
        pick = operator.itemgetter(*positions) if len(positions) > 1 else lambda given: tuple(given[p] for p in positions)
        kept = tuple(values[position] for position in self.constants)
        return self.routes.setdefault(key, Route(made, pick, tensors, kept))


def _binder(jit: JITFunction[Any]) -> Callable[..., Binding | None]:
    """A function with the signature of a launch that returns the grid and the arguments in order. It returns None for launch
    options or compile-only launches. Parameters that configs set may be missing."""
    names = list(jit.arg_names)
    given = [f"{name}=default_of.get({name!r})" for name in names]
    returned = "".join(f"{name}, " for name in names)
    text = f"def bind({', '.join(given)}, *, grid, warmup, **options):\n"
    text += f"    return None if warmup or options else (grid, ({returned}))\n"
    defaults = {name: one.default for name, one in jit.signature.parameters.items() if one.default is not one.empty}
    within: dict[str, Any] = {"default_of": defaults}
    exec(text, within)
    binder: Callable[..., Binding | None] = within["bind"]
    return binder
