"""From a Program to lines: when to allocate, call, free and reuse."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch

from polytile.ir import sizes
from polytile.ir.aliases import maybe_aliased
from polytile.ir.attention import Attention
from polytile.ir.buffer import View
from polytile.ir.library_call import map_refs
from polytile.ir.loop import Loop
from polytile.ir.program import Assert, Extern, Operation, Program, place_of
from polytile.ir.template import IS_PACKED, ComputedWeight, PackedWeight, Template
from polytile.wrapper import lines
from polytile.wrapper.arguments import argument_lines, check_bound, without_unused
from polytile.wrapper.lines import Argument, KernelCall, Line
from polytile.wrapper.memory import plan

CallOf = Callable[[Loop | Template | Attention], KernelCall]
EMPTY = torch.ops.aten.empty_strided.default


def schedule(
    program: Program,
    call_of: CallOf,
    inplace: Mapping[str, str] | None = None,
    traced: Mapping[sympy.Symbol, int] | None = None,
) -> tuple[Line, ...]:
    """The lines of a program.

    Parameters
    ----------
    program : Program
        The program.
    call_of : callable
        Returns the KernelCall of a loop, template or attention.
    inplace : mapping, optional
        Maps a new buffer to one that dies where the new one is written, and whose memory it may take.
    traced : mapping, optional
        The sizes at which memory is planned.

    Returns
    -------
    tuple of Line
        The lines.

    Raises
    ------
    IRError
        If a line needs a size that is not known by then.
    """
    scheduling = _Schedule(program, call_of, inplace or {})
    head, body = argument_lines(program, scheduling.fresh), scheduling.body()
    planned = plan(body, program, traced or {}, scheduling.taken)
    constants = [lines.Constant(name, value) for name, value in program.constants.items()]
    arguments = without_unused(head, planned)
    check_bound([*arguments, *planned])
    return (*constants, *scheduling.defined, *_on_its_device(program), *arguments, *planned)


class _Schedule:
    """The state of turning one program into lines."""

    def __init__(self, program: Program, call_of: CallOf, inplace: Mapping[str, str]) -> None:
        self.program, self.call_of, self.inplace = program, call_of, inplace
        self.out: list[Line] = []
        self.kernels: dict[int, str] = {}
        self.defined: list[lines.DefineKernel] = []
        self.taken: set[str] = set()
        self._aliased = maybe_aliased(program)
        self._names = {*program.buffers, *(i.name for i in program.inputs), *_symbol_names(program)}
        self._views: list[str] = []
        self._last = self._last_uses()
        self._dying: dict[int, list[str]] = {}
        for name, position in self._last.items():
            self._dying.setdefault(position, []).append(name)

    def body(self) -> list[Line]:
        """The lines that follow the binding of the arguments."""
        live = self.program.input_buffers()
        self._free(-1, live)
        for position, operation in enumerate(self.program.operations):
            call = self.call_of(operation) if isinstance(operation, Loop | Template | Attention) else None
            if call is not None and call.computed_weight is not None:
                self._find_computed_weight(call.computed_weight, call, live)
            else:
                self._allocate(operation, live, position)
                self._operation(operation, call)
            self._free(position, live)
        self._return()
        return self.out

    def fresh(self, name: str) -> str:
        """`name` with a number that makes it unique."""
        number = 0
        while f"{name}{number}" in self._names:
            number += 1
        self._names.add(f"{name}{number}")
        return f"{name}{number}"

    # lifetimes -------------------------------------------------------------------------------------------------------

    def _last_uses(self) -> dict[str, int]:
        """Index of the operation after which each buffer is dead; -1 for an unused input. Results and constants never die."""
        last = dict.fromkeys(sorted(self.program.input_buffers()), -1)
        for position, operation in enumerate(self.program.operations):
            for name in operation.reads() | operation.writes():
                last[name] = position
        for name in self.program.output_buffers() | set(self.program.constants):
            last[name] = len(self.program.operations)
        return last

    def _allocate(self, operation: Operation, live: set[str], position: int) -> None:
        """Allocates memory for what the operation writes. Library calls allocate their own results, except one that only
        allocates."""
        if isinstance(operation, Extern) and operation.target is not EMPTY:
            live.update(operation.writes())
            return
        for name in sorted(operation.writes() - live):
            buffer = self.program.buffers[name]
            if buffer.role != "temp":
                continue
            old = self.inplace.get(name)
            if old is not None and old in live - self._aliased and self._last.get(old) == position:
                self.out.append(lines.Reuse(buffer, self.program.buffers[old]))
                self.taken.add(old)
            else:
                self.out.append(lines.Allocate(buffer))
            live.add(name)

    def _free(self, position: int, live: set[str]) -> None:
        dead = sorted(n for n in self._dying.get(position, ()) if n in live)
        self.out.extend(lines.Free(name) for name in (*self._views, *dead))
        live.difference_update(dead)
        self._views.clear()

    # operations ------------------------------------------------------------------------------------------------------

    def _operation(self, operation: Operation, call: KernelCall | None) -> None:
        if isinstance(operation, Assert):
            self.out.append(lines.CheckSizes(operation.condition, operation.message, operation.error))
            return
        if operation.origins:
            reason = f" (library: {operation.reason})" if isinstance(operation, Extern) else ""
            self.out.append(lines.Comment(", ".join(dict.fromkeys(operation.origins)) + reason))
        if isinstance(operation, Extern):
            if operation.target is not EMPTY:
                self._library(operation)
        elif call is not None:
            self._kernel(call)

    def _find_computed_weight(self, argument: ComputedWeight, call: KernelCall, live: set[str]) -> None:
        """Looks up what a loop would compute. Nothing is stored in its place: others keep it."""
        assert call.site is not None, "who makes a call for a computed weight says where it is looked up"
        self.out.append(lines.Comment(", ".join(dict.fromkeys(argument.loop.origins))))
        self.out.append(lines.FindPackedWeight(argument.result.name, None, argument.weight.name, call.site.find))
        live.add(argument.result.name)
        self._aliased.add(argument.result.name)

    def _kernel(self, call: KernelCall) -> None:
        if id(call.run) not in self.kernels:
            name = call.name if call.name not in self._names and _is_name(call.name) else self.fresh("kernel")
            self._names.add(name)
            self.kernels[id(call.run)] = name
            self.defined.append(lines.DefineKernel(name, call.run))
        packed = self._find_packed_weight(call)  # before this program makes views of the weight
        tensors = tuple(self._passed(tensor, packed) for tensor in call.tensors)
        extents = tuple(packed.symbol if packed and packed.symbol and extent == IS_PACKED else extent for extent in call.sizes)
        self.out.append(lines.CallKernel(self.kernels[id(call.run)], tensors, extents))

    def _find_packed_weight(self, call: KernelCall) -> lines.FindPackedWeight | None:
        """Looks up the packed copy of a weight, if the call passes one. Its name is freed after the operation."""
        weight = call.packed_weight
        if weight is None:
            return None
        assert call.site is not None, "who makes a call with a packed weight says where it is looked up"
        line = lines.FindPackedWeight(self.fresh("panels"), sizes.axis(self.fresh("packed")), weight.view.buffer, call.site.find)
        self.out.append(line)
        self._views.append(line.name)
        return line

    def _passed(self, tensor: str | View | PackedWeight | ComputedWeight, packed: lines.FindPackedWeight | None) -> str:
        """The name under which a kernel's argument is passed. `packed` has looked up the packed weight among them."""
        if isinstance(tensor, PackedWeight):
            assert packed is not None
            return packed.name
        assert not isinstance(tensor, ComputedWeight)
        return self._name(tensor)

    def _name(self, tensor: str | View, alias: bool = False) -> str:
        """The name under which a buffer or view is passed. A view that is not a result is freed after the operation."""
        if isinstance(tensor, str):
            return tensor
        buffer = self.program.buffers[tensor.buffer]
        extents = zip((*tensor.sizes, *tensor.strides), (*buffer.sizes, *buffer.strides), strict=False)
        alike = len(tensor.sizes) == len(buffer.sizes) and tensor.dtype == buffer.dtype
        if alike and tensor.offset == 0 and all(sizes.equal(one, other) for one, other in extents):
            return tensor.buffer
        name = self.fresh("view")
        dtype = tensor.dtype if tensor.dtype != buffer.dtype else None
        self.out.append(lines.MakeView(name, tensor, dtype, alias))
        self._views.append(name)
        return name

    def _library(self, operation: Extern) -> None:
        args, kwargs = map_refs((operation.args, operation.kwargs), self._argument)
        wanted = operation.symbols or any(name is not None for name in operation.outputs)
        result = self.fresh("result") if wanted else None
        self.out.append(lines.CallLibrary(result, operation.target, args, kwargs))
        if result is None:
            return
        for symbol, how in operation.symbols:
            if isinstance(how, sympy.Expr):
                self.out.append(lines.BindSize(symbol, how))
                continue
            what, output, dim = place_of(how)
            self.out.append(lines.PickSize(symbol, result, output if operation.many else None, dim, what))
        for k, name in enumerate(operation.outputs):
            if name is not None:
                buffer = self.program.buffers[name]
                self.out.append(lines.PickOutput(buffer, result, k if operation.many else None))
        self.out.append(lines.Free(result))

    def _argument(self, held: Any) -> Argument:
        return Argument(self._name(held) if isinstance(held, View) else held)

    def _return(self) -> None:
        inputs = self.program.input_buffers()
        values = [
            self._name(output, alias=output.buffer in inputs) if isinstance(output, View) else output
            for output in self.program.outputs
        ]
        self.out.append(lines.Return(tuple(values)))


def _on_its_device(program: Program) -> tuple[Line, ...]:
    """Makes the program's accelerator current if it uses exactly one. This is done once rather than per kernel, since
    kernels find their own device; it makes allocation take its fastest path."""
    used = {buffer.device for buffer in program.buffers.values()} - {torch.device("cpu")}
    return (lines.OnDevice(used.pop()),) if len(used) == 1 else ()


def _symbol_names(program: Program) -> set[str]:
    """Names of all symbols in sizes. Symbols that library calls define occur in the sizes of what follows."""
    extents = [e for buffer in program.buffers.values() for e in (*buffer.sizes, *buffer.strides)]
    extents += [item.size for item in program.inputs if item.size is not None]
    own = {s.name for e in extents for s in e.free_symbols}
    return own | {s.name for op in program.operations if isinstance(op, Extern) for s, _ in op.symbols}


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
