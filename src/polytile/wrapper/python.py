"""The Python backend of the wrapper: lines to one readable function."""

from __future__ import annotations

import itertools
import keyword
import linecache
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

from polytile.ir.program import Buffer
from polytile.runtime import empty_strided_cpu
from polytile.wrapper import lines
from polytile.wrapper.lines import Argument, Line

_printer = PythonPrinter()
_programs = itertools.count()


class PythonProgram:
    """A compiled wrapper: `source` is its text, and calling it runs the program."""

    def __init__(self, source: str, run: Callable[[list[Any]], list[Any]]) -> None:
        self.source, self.run = source, run

    def __call__(self, args: list[Any]) -> list[Any]:
        return self.run(args)


def wrap(name: str, all_lines: tuple[Line, ...]) -> PythonProgram:
    """The function of `all_lines`; its source shows in tracebacks."""
    writer = _PythonWriter(name)
    for line in all_lines:
        writer.write(line)
    source = writer.source()
    file = f"<polytile {name} {next(_programs)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    scope = dict(writer.scope)
    exec(compile(source, file, "exec"), scope)
    return PythonProgram(source, scope["call"])


class _PythonWriter:
    """Collects the text of the function and the objects that it refers to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.header: list[str] = []
        self.body: list[str] = []
        self.depth = 1
        self.scope: dict[str, Any] = {"torch": torch, "_empty_cpu": empty_strided_cpu, "_reinterpret": _reinterpret, "_as_declared": _as_declared}
        self.dtypes: dict[torch.dtype, str] = {}

    def write(self, line: Line) -> None:
        getattr(self, type(line).__name__)(line)

    def add(self, text: str) -> None:
        self.body.append("    " * self.depth + text)

    def source(self) -> str:
        return "\n".join([f"# polytile program {self.name}", *self.header, "", "def call(args):", *self.body, ""])

    # names and values --------------------------------------------------------------------------------------------------

    @staticmethod
    def size(e: sympy.Expr) -> str:
        return _printer.doprint(e)

    def shape(self, extents: tuple[sympy.Expr, ...]) -> str:
        return "(" + "".join(f"{self.size(e)}, " for e in extents) + ")"

    def bound(self, name: str, value: Any) -> str:
        """A global of the function's module that holds `value`."""
        self.scope[name] = value
        return name

    def value(self, value: Any) -> str:
        if isinstance(value, Argument):
            return value.value if isinstance(value.value, str) else self.size(value.value)
        if isinstance(value, list):
            return "[" + ", ".join(self.value(v) for v in value) + "]"
        if isinstance(value, tuple):
            return "(" + "".join(self.value(v) + ", " for v in value) + ")"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if value == value and abs(value) != float("inf") else f"float('{value}')"
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        return self.bound(f"_object{len(self.scope)}", value)

    # lines -------------------------------------------------------------------------------------------------------------

    def Comment(self, line: lines.Comment) -> None:
        self.add("# " + line.text)

    def DefineKernel(self, line: lines.DefineKernel) -> None:
        self.bound(line.name, line.run)
        self.header += [f"# {line.name}: {text}" for text in line.description.splitlines()[:1]]

    def Constant(self, line: lines.Constant) -> None:
        self.bound(line.name, line.value)

    def TakeArguments(self, line: lines.TakeArguments) -> None:
        if line.names:
            self.add(", ".join(line.names) + ("," if len(line.names) == 1 else "") + " = args")
        self.add("args.clear()")

    def BindSize(self, line: lines.BindSize) -> None:
        if line.tensor is not None:
            self.add(f"{line.symbol} = {line.tensor}.{'stride' if line.stride else 'size'}({line.dim})")
        elif str(line.symbol) != str(line.value):
            assert line.value is not None
            self.add(f"{line.symbol} = {self.size(line.value)}")

    def Allocate(self, line: lines.Allocate) -> None:
        self.add(f"{line.buffer.name} = {self._empty(line.buffer)}")

    def _empty(self, buffer: Buffer) -> str:
        shape, strides = self.shape(buffer.sizes), self.shape(buffer.strides)
        if buffer.device.type == "cpu":
            return f"_empty_cpu({shape}, {strides}, {buffer.dtype})"
        return f"torch.empty_strided({shape}, {strides}, dtype={buffer.dtype}, device={str(buffer.device)!r})"

    def Free(self, line: lines.Free) -> None:
        self.add(f"del {line.name}")

    def Reuse(self, line: lines.Reuse) -> None:
        new, old = line.buffer, line.old
        if new.sizes == old.sizes and new.strides == old.strides:
            self.add(f"{new.name} = {old.name}  # reuse")
        else:
            shape, strides = self.shape(new.sizes), self.shape(new.strides)
            self.add(f"{new.name} = _reinterpret({old.name}, {shape}, {strides}, 0)  # reuse")

    def MakeView(self, line: lines.MakeView) -> None:
        view = line.view
        shape, strides, offset = self.shape(view.sizes), self.shape(view.strides), self.size(view.offset)
        if line.alias:
            self.add(f"{line.name} = {view.buffer}.as_strided({shape}, {strides}, {view.buffer}.storage_offset() + {offset})")
        else:
            self.add(f"{line.name} = _reinterpret({view.buffer}, {shape}, {strides}, {offset})")

    def CallKernel(self, line: lines.CallKernel) -> None:
        self.add(f"{line.kernel}({', '.join([*line.tensors, *[self.size(e) for e in line.sizes]])})")

    def CallLibrary(self, line: lines.CallLibrary) -> None:
        args = [self.value(a) for a in line.args] + [f"{_keyword(k)}={self.value(v)}" for k, v in line.kwargs]
        self.add(f"{line.result} = {self._callee(line.target)}({', '.join(args)})")

    def _callee(self, target: Any) -> str:
        if isinstance(target, torch._ops.OpOverload):
            namespace, _, rest = str(target).partition(".")
            return f"torch.ops.{namespace}.{rest}"
        return self.bound(f"_{getattr(target, '__name__', 'target')}_{len(self.scope)}", target)

    def PickOutput(self, line: lines.PickOutput) -> None:
        picked = line.source if line.k is None else f"{line.source}[{line.k}]"
        buffer = line.buffer
        self.add(f"{buffer.name} = _as_declared({picked}, {self.shape(buffer.strides)})")

    def PickSize(self, line: lines.PickSize) -> None:
        picked = line.source if line.k is None else f"{line.source}[{line.k}]"
        self.add(f"{line.symbol} = {picked}" if line.dim is None else f"{line.symbol} = {picked}.size({line.dim})")

    def CheckSizes(self, line: lines.CheckSizes) -> None:
        self.add(f"if not ({_printer.doprint(line.condition)}):")
        self.add(f"    raise RuntimeError({line.message!r})")

    def EnterDevice(self, line: lines.EnterDevice) -> None:
        self.add(f"with torch.{line.device.type}.device({line.device.index or 0}):")
        self.depth += 1

    def LeaveDevice(self, line: lines.LeaveDevice) -> None:
        self.depth -= 1

    def Return(self, line: lines.Return) -> None:
        values = [v if isinstance(v, str) else "None" if v is None else self.size(v) for v in line.values]
        self.add(f"return [{', '.join(values)}]")


def _keyword(name: str) -> str:
    if keyword.iskeyword(name):
        raise ValueError(f"the library argument {name!r} is a Python keyword.")
    return name


def _as_declared(result: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """`result` in the strides that the program was compiled for; a copy where the operator chose others this time."""
    if result.stride() == strides or result.numel() == 0:
        return result
    if all(n == 1 or a == b for n, a, b in zip(result.shape, result.stride(), strides, strict=True)):
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device).copy_(result)


def _make_reinterpret() -> Callable[..., torch.Tensor]:
    """Shares memory under other sizes and strides; torch's own fast form where this version has it."""
    fast = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    fast = getattr(fast, "_reinterpret_tensor", None)
    if fast is not None:
        return fast

    def slow(tensor: torch.Tensor, shape: Any, strides: Any, offset: int) -> torch.Tensor:
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)

    return slow


_reinterpret = _make_reinterpret()
