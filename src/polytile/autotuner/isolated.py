"""One config of an autotuned kernel for another process (tuning/isolation): machine code with its arguments, or, under Triton's
interpreter, a kernel in an importable module."""

from __future__ import annotations

import importlib
import math
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sympy

from polytile.autotuner.call import Call, plain, tensor_in
from polytile.candidates.handles import DeviceHandle, Handle, MachineCode, PythonHandle
from polytile.runtime.cuda.launch import LITERAL, NOTHING, SCRATCH, TENSOR, Launch, Scratch
from polytile.runtime.formula import Formula, encode
from polytile.tuning.isolation.memory import Unavailable

if TYPE_CHECKING:
    from polytile.autotuner.tuner import Autotuner

WARP = 32

FORMATS = {
    "i1": "?", "u1": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "fp16": "e", "fp32": "f", "fp64": "d",
}  # fmt: skip
"""The memory format of numbers of each Triton type, as `struct` codes."""


def handle(tuner: Autotuner, config: Any, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Handle:
    """How another process makes the launch `call` with this config on `args` and `kwargs`.

    Raises
    ------
    Unavailable
        If another process cannot. Compile errors are raised as Triton raises them.
    """
    if tuner.has_hooks(config):
        raise Unavailable("a hook runs with it, which another process lacks")
    given = {**dict(zip(tuner.arg_names, args, strict=False)), **{n: v for n, v in kwargs.items() if n in tuner.arg_names}}
    values = {**tuner.defaults, **given, **config.kwargs}
    grid = _grid(kwargs["grid"], values)
    if tuner.interpreted:
        return _to_import(tuner, config, call, given, grid)
    return _machine_code(tuner.compiled(config, args, kwargs), call, values, grid)


def _grid(grid: Any, values: Mapping[str, Any]) -> tuple[int, int, int]:
    """The grid as three numbers of programs."""
    try:
        made = grid(dict(values)) if callable(grid) else grid
    except KeyError as error:
        raise Unavailable(f"its grid asks for {error}, which heuristics compute") from None
    x, y, z = (*map(int, made), 1, 1)[:3]
    return x, y, z


# Machine code.


def _machine_code(compiled: Any, call: Call, values: Mapping[str, Any], grid: tuple[int, int, int]) -> DeviceHandle:
    compiled = compiled.result() if hasattr(compiled, "result") else compiled
    image = getattr(compiled, "asm", {}).get("cubin")
    if image is None or getattr(compiled.metadata, "launch_cooperative_grid", False):
        raise Unavailable("it is no CUDA kernel whose programs run one by one")
    metadata = compiled.metadata
    kinds = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
    parameters = [_parameter(name, kind, values.get(name), call) for name, kind in kinds.items()]
    sizes = getattr(metadata, "global_scratch_size", 0), getattr(metadata, "profile_scratch_size", 0)
    cluster, wanted = getattr(metadata, "num_ctas", 1), [size for size in sizes if size]
    for size in sizes:
        parameters.append((SCRATCH, wanted.index(size)) if size else (NOTHING, 0))
    programs = cluster * math.prod(grid)
    x, y, z = map(_constant, (cluster * grid[0], *grid[1:]))
    code, threads = MachineCode(image, metadata.name), WARP * metadata.num_warps
    launch = Launch(code, threads, metadata.shared, tuple(parameters), (x, y, z), cluster=cluster)
    return DeviceHandle((launch,), tuple(Scratch(_constant(size * programs), True) for size in wanted))


def _constant(value: int) -> Formula:
    return encode(sympy.Integer(value), {})


def _parameter(name: str, kind: Any, value: Any, call: Call) -> tuple[int, int]:
    """(kind, index) of a parameter of Triton type `kind`."""
    if isinstance(kind, str) and kind.startswith("*") and name in call.tensors and tensor_in(value) is value:
        return TENSOR, call.tensors.index(name)
    if isinstance(value, int | float) and kind in FORMATS:
        return LITERAL, int.from_bytes(struct.pack(FORMATS[kind], value).ljust(8, b"\0"), "little")
    if isinstance(value, int | float) and kind == "bf16":
        return LITERAL, int.from_bytes(struct.pack("f", value)[2:], "little")
    raise Unavailable(f"its argument {name!r} is neither a tensor of its device nor a number")


# An importable kernel.


def place_of(tuner: Autotuner) -> tuple[str, str] | None:
    """(module, name) under which another process finds the autotuner, or a wrapper of it; None if it does not."""
    module, name = tuner.base_fn.__module__, tuner.base_fn.__qualname__
    held: Any = sys.modules.get(module)
    for part in name.split("."):
        held = getattr(held, part, None)
    return (module, name) if module != "__main__" and _below(held, tuner) else None


def _below(held: Any, tuner: Any) -> bool:
    while held is not None and held is not tuner:
        held = getattr(held, "fn", None)
    return held is not None


def _to_import(tuner: Autotuner, config: Any, call: Call, given: Mapping[str, Any], grid: tuple[int, int, int]) -> PythonHandle:
    place = place_of(tuner)
    if place is None:
        raise Unavailable("it cannot be found from another process; make it a kernel of a module")
    flat = (*call.tensors, *call.sizes)
    others = {name: plain(value) for name, value in given.items() if name not in flat}
    keywords = config.all_kwargs()
    for name, value in {**others, **keywords}.items():
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise Unavailable(f"its argument {name!r} is neither a tensor, a number nor a text")
    arguments = {"module": place[0], "name": place[1], "flat": list(flat), "values": {**others, **keywords}, "grid": list(grid)}
    return PythonHandle(__name__, launcher.__qualname__, arguments)


def launcher(module: str, name: str, flat: Sequence[str], values: Mapping[str, Any], grid: Sequence[int]) -> Callable[..., None]:
    """Runs in the other process: a function that launches the kernel below the autotuner `name`, with the arguments named in
    `flat` and with `values`."""
    from triton.runtime.autotuner import Autotuner

    held: Any = importlib.import_module(module)
    for part in name.split("."):
        held = getattr(held, part)
    while not isinstance(held, Autotuner):
        held = held.fn
    kernel = held.fn

    def launch(*args: Any) -> None:
        kernel.run(**dict(zip(flat, args, strict=True)), **values, grid=tuple(grid), warmup=False)

    return launch
