"""Launches of an autotuned kernel like earlier ones, without the work of finding out what they are like.

What Triton compiles a kernel for is read from the arguments by C (runtime/kinds.c). Calls that agree in it share a Route: the
MultiKernel that chooses for them, and the compiled kernel of each config. Whatever is not usual goes by Triton's own launch:
arguments of other sorts than tensors on one device, numbers, constants and None; launch options; hooks; other threads' tracing.
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

from polytile.dispatch.conditions import changing
from polytile.dispatch.multikernel import MultiKernel
from polytile.runtime import native
from polytile.runtime.arguments import CPU, CUDA

MOST_ROUTES = 4096
"""Routes that are kept, and sizes of each; then all are forgotten."""

ABSENT = object()
RUNTIME = knobs.runtime

Binding = tuple[Any, tuple[Any, ...]]
"""The grid, and the arguments in the order of the parameters."""

tracing: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback
"""None unless Dynamo looks at the frames that this thread enters."""


class Prepared:
    """A compiled kernel with the parameters that its config sets: (position, value). `tail`: the values alone where these are the
    last parameters, as most kernels have it."""

    __slots__ = ("kernel", "names", "settings", "stream", "tail")

    def __init__(self, kernel: Any, names: tuple[str, ...], settings: tuple[tuple[int, Any], ...], device: int) -> None:
        self.kernel, self.names, self.settings = kernel, names, settings
        self.stream = functools.partial(driver.active.get_current_stream, device)
        last = sorted(settings)
        trailing = [position for position, _ in last] == list(range(len(names) - len(last), len(names)))
        self.tail = tuple(value for _, value in last) if trailing else None

    def launch(self, grid: Any, values: tuple[Any, ...]) -> Any:
        """Launches it, as JITFunction.run does. Returns the compiled kernel."""
        if self.tail is not None:
            given: Any = values[: len(values) - len(self.tail)] + self.tail
        else:
            given = list(values)
            for position, value in self.settings:
                given[position] = value
        if callable(grid):
            grid = grid(dict(zip(self.names, given)))  # noqa: B905  # as many, and it takes longer to see that
        x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
        kernel, stream = self.kernel, self.stream()
        enter, leave, metadata = RUNTIME.launch_enter_hook, RUNTIME.launch_exit_hook, None
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            metadata = kernel.launch_metadata(grid, stream, *given)
        else:
            enter = leave = None
        kernel._run(x, y, z, stream, kernel.function, kernel.packed_metadata, metadata, enter, leave, *given)
        return kernel


class Route:
    """What calls of one kind have in common. `made` chooses among configs, and is called with what `pick` picks from a call's
    arguments, so many tensors first. `kernels`: those compiled so far, by what launches them; `kept`: constants that the kind
    names by their address."""

    __slots__ = ("kept", "kernels", "made", "pick", "sizes", "tensors")

    def __init__(self, made: MultiKernel | None, pick: Callable[[Any], Any], tensors: int, kept: tuple[Any, ...]) -> None:
        self.made, self.pick, self.tensors, self.kept = made, pick, tensors, kept
        self.kernels: dict[Any, Prepared] = {}
        self.sizes: set[tuple[int, ...]] = set()
        """Sizes that are known to be decided."""

    def is_decided(self, sizes: tuple[int, ...]) -> bool:
        """Whether something is chosen at these sizes, which is kept."""
        assert self.made is not None
        if self.made.dispatcher.get(self.made.dispatcher.key_of(*sizes)) is None:
            return False
        if len(self.sizes) >= MOST_ROUTES:
            self.sizes.clear()
        self.sizes.add(sizes)
        return True


class Quick:
    """The routes of one autotuner, whose kernel is `jit`."""

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
        """None where every launch goes by Triton: heuristics compute arguments, an interpreter runs the kernel, there is no C."""
        module = native.module(quietly=True) if type(fn) is JITFunction else None
        return None if module is None else Quick(fn, tuple(keys), module.kinds_of)

    def key_of(self, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """What launches with these arguments share; None where they are of other sorts."""
        kinds = self.kinds_of(values, self.codes, self.device_type)
        return None if kinds is None else (kinds, self.current_device(), changing())

    @functools.cached_property
    def device_type(self) -> int:
        """torch's number for the type of device that kernels run on."""
        return CPU if driver.active.get_active_torch_device().type == "cpu" else CUDA

    @functools.cached_property
    def current_device(self) -> Callable[[], int]:
        """Triton's function for the number of the current device."""
        current: Callable[[], int] = driver.active.get_current_device
        return current

    def prepare(self, route: Route, by: Any, config: Any, kernel: Any) -> None:
        """Keeps the compiled kernel of a config for later launches."""
        kernel = kernel.result() if hasattr(kernel, "result") else kernel
        if kernel is None or kernel._run is None or not self.usual():
            return
        settings = tuple((self.names.index(name), value) for name, value in config.kwargs.items() if name in self.names)
        route.kernels[by] = Prepared(kernel, self.names, settings, self.current_device())

    def usual(self) -> bool:
        """Whether nobody wants to know of launches, and the global values that the kernel was compiled with are as they were."""
        jit = self.jit
        if not jit.pre_run_hooks and not jit.used_global_vals:
            return True
        unchanged = (values.get(name, ABSENT) == value for (name, _), (value, values) in jit.used_global_vals.items())
        return not jit.pre_run_hooks and all(unchanged)

    def remember(
        self, key: tuple[Any, ...], made: MultiKernel | None, names: tuple[str, ...], tensors: int, values: tuple[Any, ...]
    ) -> Route:
        """The route of the calls like one with these arguments; `names` are those of the arguments that `made` is called with,
        so many `tensors` first."""
        if len(self.routes) >= MOST_ROUTES:
            self.routes.clear()
        positions = [self.names.index(name) for name in names]
        pick = operator.itemgetter(*positions) if len(positions) > 1 else lambda given: tuple(given[p] for p in positions)
        kept = tuple(values[position] for position in self.constants)
        return self.routes.setdefault(key, Route(made, pick, tensors, kept))


def _binder(jit: JITFunction[Any]) -> Callable[..., Binding | None]:
    """A function that is called as a launch is, and returns the grid and the arguments in order; None where a launch option is
    given, or the launch is to compile only. Parameters that configs set may be missing."""
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
