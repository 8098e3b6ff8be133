"""The fast path for launches of an autotuned kernel that resemble earlier ones.

C code (runtime/tuned_launch.c) reads from the arguments what Triton specialises a kernel on. Calls that agree in it share a
Route: the MultiKernel that chooses for them, and the compiled kernel of each config. Everything unusual goes to `otherwise`:
arguments other than tensors on one device, numbers, constants and None; launch options; sizes that nothing is decided for;
tracing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from polytile import options
from polytile.autotuner.launching import Launcher, launcher_of
from polytile.dispatch.multikernel import MultiKernel
from polytile.runtime import native
from polytile.runtime.arguments import CPU, CUDA

MOST_ROUTES = 4096
"""Maximum number of routes; beyond it, all are dropped."""

MOST_PARAMETERS = 256
ABSENT = object()
RUNTIME = knobs.runtime
HOOKS = RUNTIME, ("launch_enter_hook", "launch_exit_hook"), "calls"

Otherwise = Callable[[Any, tuple[Any, ...], dict[str, Any], "bytes | None"], Any]
"""Takes the grid, the arguments, the keywords, and the key of the launch's route. The key is None for unusual arguments."""

tracing: Callable[[], Any] = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: True)
"""Returns None unless Dynamo may inspect the frames that this thread enters."""


class Form(NamedTuple):
    """A compiled kernel, its config, the parameters that the config sets, as (position, value), and polytile's launcher of it, if
    there is one (launching.py). C reads the first four."""

    kernel: Any
    config: Any
    settings: tuple[tuple[int, Any], ...]
    launcher: Launcher | None
    names: tuple[str, ...]
    stream: Callable[[], int]

    def launch(self, grid: Any, values: tuple[Any, ...]) -> Any:
        """Launch the kernel as JITFunction.run does, with arguments in the order of the parameters. Returns the kernel."""
        changed = list(values)
        for position, value in self.settings:
            changed[position] = value
        given = tuple(changed)
        if callable(grid):
            grid = grid(dict(zip(self.names, given, strict=True)))
        enter, leave = RUNTIME.launch_enter_hook, RUNTIME.launch_exit_hook
        hooked = getattr(enter, "calls", enter) or getattr(leave, "calls", leave)
        if hooked or self.launcher is None or self.launcher.launch(given, grid) != 0:
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


class Route(NamedTuple):
    """What calls of one kind share. C reads the first five.

    Attributes
    ----------
    table
        The dispatch table that chooses a config. None for a kernel with one config, whose form is that of None.
    tensors, sizes
        Positions of the table's arguments among the parameters.
    forms
        Compiled kernels, by what launches them.
    variables
        Global variables that the kernel was compiled with: (namespace, name, value).
    kept
        Objects that the kind refers to by address.
    """

    table: Any
    tensors: bytes
    sizes: bytes
    forms: dict[Any, Form]
    variables: tuple[tuple[dict[str, Any], str, Any], ...]
    kept: tuple[Any, ...]


class Shared(NamedTuple):
    """What all launches of a kernel share, in the order in which C reads it.

    `letters` says what matters of each parameter (runtime/kinds.c). The answers to `questions` are part of a route's key.
    """

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    letters: bytes
    device_type: int
    tracing: Callable[[], Any]
    questions: tuple[Callable[[], Any], ...]
    hooks: tuple[Any, ...]
    run_hooks: list[Any]
    routes: dict[bytes, Route]
    tuner: Any
    otherwise: Otherwise


class Quick:
    """The routes of one autotuner, `tuner`, for the kernel `jit`."""

    def __init__(self, jit: JITFunction[Any], keys: tuple[str, ...], tuner: Any, otherwise: Otherwise) -> None:
        self.jit, self.names = jit, tuple(map(sys.intern, jit.arg_names))
        self.tuner, self.otherwise = tuner, otherwise
        constants = {self.names[position] for position in jit.constexprs}
        self.constants = tuple(position for position, name in enumerate(self.names) if name in constants)
        self.letters = "".join("c" if name in constants else "k" if name in keys else "v" for name in self.names).encode()
        parameters = jit.signature.parameters.values()
        self.defaults = tuple(None if one.default is one.empty else one.default for one in parameters)
        self.routes: dict[bytes, Route] = {}

    @staticmethod
    def of(fn: Any, keys: list[str], tuner: Any, otherwise: Otherwise) -> Quick | None:
        """None if every launch must go through Triton: heuristics compute arguments, an interpreter runs the kernel, or there is
        no C module."""
        possible = type(fn) is JITFunction and len(fn.arg_names) <= MOST_PARAMETERS
        return Quick(fn, tuple(keys), tuner, otherwise) if possible and native.module(quietly=True) is not None else None

    def launcher(self, grid: Any) -> Callable[..., Any]:
        """The function that launches the kernel with this grid."""
        return functools.partial(self._launch, self._shared, grid)

    @functools.cached_property
    def _launch(self) -> Callable[..., Any]:
        launch: Callable[..., Any] = native.module().launch_tuned
        return launch

    @functools.cached_property
    def _shared(self) -> Shared:
        conditions = options.overriding, torch.get_num_threads, torch._C._get_deterministic_algorithms
        return Shared(
            self.names, self.defaults, self.letters, self.device_type, tracing, (self.current_device, *conditions), HOOKS,
            self.jit.pre_run_hooks, self.routes, self.tuner, self.otherwise,
        )  # fmt: skip

    @functools.cached_property
    def device_type(self) -> int:
        """torch's number for the device type of kernels. A number that no tensor has if Triton's backend specialises on more than
        kinds.c distinguishes, as AMD's does on tensor sizes."""
        if driver.active.get_current_target().backend != "cuda":
            return -1
        return CPU if driver.active.get_active_torch_device().type == "cpu" else CUDA

    @functools.cached_property
    def current_device(self) -> Callable[[], int]:
        """A function for the index of the current device: Triton's."""
        current: Callable[[], int] = driver.active.get_current_device
        return torch._C._cuda_getDevice if current is torch.cuda.current_device else current

    def route(self, key: bytes | None) -> Route | None:
        """What is known of calls with this key. None if the kernel is to be launched by Triton as if it were the first time."""
        return self.routes.get(key) if key is not None and self._is_as_compiled() else None

    def prepare(self, route: Route, by: Any, config: Any, kernel: Any) -> None:
        """Keep the compiled kernel of a config for later launches."""
        kernel = kernel.result() if hasattr(kernel, "result") else kernel
        if getattr(kernel, "_run", None) is None or not self._is_as_compiled():
            return
        settings = tuple((self.names.index(name), value) for name, value in config.kwargs.items() if name in self.names)
        device = self.current_device()
        stream = functools.partial(driver.active.get_current_stream, device)
        launcher = launcher_of(kernel, self.names, device, self.device_type)
        route.forms[by] = Form(kernel, config, settings, launcher, self.names, stream)

    def _is_as_compiled(self) -> bool:
        """Whether no function looks at launches, and the global variables with which the kernel was compiled are unchanged."""
        unchanged = (values.get(name, ABSENT) == value for values, name, value in self._variables())
        return not self.jit.pre_run_hooks and all(unchanged)

    def _variables(self) -> tuple[tuple[dict[str, Any], str, Any], ...]:
        return tuple((values, name, value) for (name, _), (value, values) in self.jit.used_global_vals.items())

    def remember(
        self, key: bytes, made: MultiKernel | None, tensors: tuple[str, ...], sizes: tuple[str, ...], values: tuple[Any, ...]
    ) -> Route:
        """The route of calls like the one with these arguments. `made` is called with these tensors and sizes."""
        if len(self.routes) >= MOST_ROUTES:
            self.routes.clear()
        kept = (*(values[position] for position in self.constants), options.overriding())
        of_tensors, of_sizes = (bytes(map(self.names.index, names)) for names in (tensors, sizes))
        table = None if made is None else made.dispatcher
        return self.routes.setdefault(key, Route(table, of_tensors, of_sizes, {}, self._variables(), kept))

    def can_call(self, made: MultiKernel) -> bool:
        """Whether C can do what a call of the kernel does."""
        return made.dispatch is made.dispatcher and isinstance(made.dispatcher, native.module().Dispatcher)
