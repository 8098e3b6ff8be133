"""From a Program to lines: when to allocate, call, free and reuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from polytile.ir import sizes
from polytile.ir.program import Assert, Extern, Loop, Operation, Program, Ref, Template, View
from polytile.wrapper import lines
from polytile.wrapper.lines import Argument, KernelCall, Line
from polytile.wrapper.memory import plan

CallOf = Callable[[Loop | Template], KernelCall]


def schedule(program: Program, call_of: CallOf, inplace: Mapping[str, str] | None = None) -> tuple[Line, ...]:
    """The lines of `program`. `call_of` says how each loop and template is called; `inplace` maps a new buffer to one that dies
    where it is born and whose memory it may take."""
    made = _Schedule(program, call_of, inplace or {})
    return plan(made.lines(), program, made.taken)


class _Schedule:
    """One program on its way to lines."""

    def __init__(self, program: Program, call_of: CallOf, inplace: Mapping[str, str]) -> None:
        self.program, self.call_of, self.inplace = program, call_of, inplace
        self.out: list[Line] = []
        self.kernels: dict[Any, str] = {}
        self.defined: list[Line] = []
        self.known: set[sympy.Symbol] = set()
        self.count = 0
        self.taken: set[str] = set()

    def lines(self) -> tuple[Line, ...]:
        self._arguments()
        last = self._last_uses()
        live: set[str] = set(self.program.input_buffers())
        for position, operation in enumerate(self.program.operations):
            self._allocate(operation, live, position, last)
            self._operation(operation)
            self._free(position, live, last)
        self._return()
        constants = [lines.Constant(name, value) for name, value in self.program.constants.items()]
        return (*constants, *self.defined, *self.out)

    # arguments and sizes -----------------------------------------------------------------------------------------------

    def _arguments(self) -> None:
        self.out.append(lines.TakeArguments(tuple(i.name for i in self.program.inputs)))
        for item in self.program.inputs:
            if isinstance(item.size, sympy.Symbol):
                self._bind(lines.BindSize(item.size, sizes.axis(item.name)), item.size)
        for item in self.program.inputs:
            if item.buffer is None:
                continue
            buffer = self.program.buffers[item.buffer]
            for stride, extents in ((False, buffer.sizes), (True, buffer.strides)):
                for d, e in enumerate(extents):
                    if isinstance(e, sympy.Symbol):
                        self._bind(lines.BindSize(e, None, item.buffer, d, stride), e)
        self._solve()

    def _bind(self, line: Line, symbol: sympy.Symbol) -> None:
        if symbol not in self.known:
            self.known.add(symbol)
            self.out.append(line)

    def _solve(self) -> None:
        """Symbols that appear only inside an expression of an argument: c·s + d = argument, solved for s."""
        found = [(i.size, sizes.axis(i.name), None, 0, False) for i in self.program.inputs if i.size is not None]
        for item in self.program.inputs:
            if item.buffer is not None:
                buffer = self.program.buffers[item.buffer]
                found += [(e, None, item.buffer, d, False) for d, e in enumerate(buffer.sizes)]
                found += [(e, None, item.buffer, d, True) for d, e in enumerate(buffer.strides)]
        for e, argument, tensor, dim, stride in found:
            unknown = sorted((e.free_symbols if isinstance(e, sympy.Expr) else set()) - self.known, key=str)
            c = sizes.coefficient(e, unknown[0]) if len(unknown) == 1 else None
            if c is None or isinstance(e, sympy.Symbol):
                continue
            name = sizes.axis(f"size{self.count}")
            self.count += 1
            self.out.append(lines.BindSize(name, argument, tensor, dim, stride))
            rest = e - c * unknown[0]
            self._bind(lines.BindSize(unknown[0], FloorDiv(name - rest, c)), unknown[0])

    # lifetimes ---------------------------------------------------------------------------------------------------------

    def _last_uses(self) -> dict[str, int]:
        """Position of the operation after which each buffer is dead; results never die."""
        last: dict[str, int] = {}
        for position, operation in enumerate(self.program.operations):
            for name in operation.reads() | operation.writes():
                last[name] = position
        for name in self.program.output_buffers() | set(self.program.constants):
            last[name] = len(self.program.operations)
        return last

    def _allocate(self, operation: Operation, live: set[str], position: int, last: Mapping[str, int]) -> None:
        if isinstance(operation, Extern):
            live.update(operation.writes())
            return
        for name in sorted(operation.writes() - live):
            buffer = self.program.buffers[name]
            if buffer.role != "temp":
                continue
            old = self.inplace.get(name)
            if old is not None and old in live and last.get(old) == position:
                self.out.append(lines.Reuse(buffer, self.program.buffers[old]))
                self.taken.add(old)
            else:
                self.out.append(lines.Allocate(buffer))
            live.add(name)

    def _free(self, position: int, live: set[str], last: Mapping[str, int]) -> None:
        for name in sorted(n for n in live if last.get(n, -1) == position):
            self.out.append(lines.Free(name))
            live.discard(name)

    # operations --------------------------------------------------------------------------------------------------------

    def _operation(self, operation: Operation) -> None:
        if isinstance(operation, Assert):
            self.out.append(lines.CheckSizes(operation.condition, operation.message))
            return
        if operation.origins:
            reason = f" (library: {operation.reason})" if isinstance(operation, Extern) else ""
            self.out.append(lines.Comment(", ".join(dict.fromkeys(operation.origins)) + reason))
        if isinstance(operation, Extern):
            self._library(operation)
        else:
            self._kernel(operation)

    def _kernel(self, operation: Loop | Template) -> None:
        call = self.call_of(operation)
        key = id(call.run)
        if key not in self.kernels:
            self.kernels[key] = call.name if call.name not in self.kernels.values() else f"{call.name}_{len(self.kernels)}"
            self.defined.append(lines.DefineKernel(self.kernels[key], call.run, str(call.run)))
        self._devices(operation, lines.CallKernel(self.kernels[key], tuple(self._name(t) for t in call.tensors), call.sizes))

    def _devices(self, operation: Operation, line: Line) -> None:
        """Accelerator kernels run with their device current."""
        devices = {self.program.buffers[b].device for b in operation.writes()} - {torch.device("cpu")}
        self.out.extend(lines.EnterDevice(d) for d in sorted(devices, key=str))
        self.out.append(line)
        self.out.extend(lines.LeaveDevice(d) for d in sorted(devices, key=str))

    def _name(self, tensor: str | View, alias: bool = False) -> str:
        """The name under which a buffer or view is passed."""
        if isinstance(tensor, str):
            return tensor
        buffer = self.program.buffers[tensor.buffer]
        same = tensor.sizes == buffer.sizes and tensor.strides == buffer.strides and tensor.dtype == buffer.dtype
        if same and tensor.offset == 0:
            return tensor.buffer
        name = f"view{self.count}"
        self.count += 1
        self.out.append(lines.MakeView(name, tensor, alias))
        return name

    def _library(self, operation: Extern) -> None:
        self.count += 1
        result = f"result{self.count}"
        args = tuple(self._argument(a) for a in operation.args)
        kwargs = tuple((k, self._argument(v)) for k, v in operation.kwargs)
        self.out.append(lines.CallLibrary(result, operation.target, args, kwargs))
        single = len(operation.outputs) == 1
        for symbol, how in operation.symbols:
            k, dim = (None, None) if how[0] == "item" else (None if single else how[1], how[2])
            self.out.append(lines.PickSize(symbol, result, k, dim))
        for k, name in enumerate(operation.outputs):
            if name is not None:
                self.out.append(lines.PickOutput(self.program.buffers[name], result, None if self._is_single(operation) else k))
        self.out.append(lines.Free(result))

    @staticmethod
    def _is_single(operation: Extern) -> bool:
        """Whether the library call returns one bare tensor and no tuple."""
        schema = getattr(operation.target, "_schema", None)
        if schema is None:
            return len(operation.outputs) == 1
        return len(schema.returns) == 1 and "[]" not in str(schema.returns[0].type)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return Argument(self._name(value.value) if isinstance(value.value, View) else value.value)
        if isinstance(value, list):
            return [self._argument(v) for v in value]
        if isinstance(value, tuple):
            return tuple(self._argument(v) for v in value)
        return value

    def _return(self) -> None:
        inputs = self.program.input_buffers()
        values: list[str | sympy.Expr | None] = []
        for output in self.program.outputs:
            if isinstance(output, View):
                values.append(self._name(output, alias=output.buffer in inputs))
            else:
                values.append(output)
        self.out.append(lines.Return(tuple(values)))


def used_names(values: Iterable[Any]) -> set[str]:
    """Tensor names inside nested library arguments."""
    found: set[str] = set()
    for value in values:
        if isinstance(value, Argument) and isinstance(value.value, str):
            found.add(value.value)
        elif isinstance(value, list | tuple):
            found |= used_names(value)
    return found


__all__ = ["schedule", "used_names"]
