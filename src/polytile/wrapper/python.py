"""The Python backend of the wrapper: lines become one readable function."""

from __future__ import annotations

import functools
import itertools
import keyword
import linecache
import math
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

from polytile.ir.complex_number import ComplexNumber
from polytile.runtime import launcher, programs
from polytile.wrapper import lines, tensors
from polytile.wrapper.backends import Wrapped
from polytile.wrapper.lines import Argument, Line

_printer = PythonPrinter()
INDENT = "    "
OPERATIONS = 3  # a symbolic number with at least this many is computed once

# Objects that the text of every wrapper may name.
_SCOPE = {
    "math": math,
    "torch": torch,
    "_as_declared": tensors.as_declared,
    "_empty_cpu": launcher.empty_strided_cpu,
    "_empty_cuda": launcher.empty_strided_cuda,
    "_reinterpret": tensors.reinterpret,
}


def wrap(name: str, all_lines: tuple[Line, ...]) -> Wrapped:
    """The function of `all_lines`. Its source shows in tracebacks."""
    text = write(name, all_lines)
    return load(name, text.source(), text.scope)


def write(name: str, all_lines: tuple[Line, ...]) -> _Writer:
    """The function of `all_lines` as text, with the objects that it refers to."""
    writer = _Writer(name)
    for line in all_lines:
        writer.write(line)
    return writer


def load(name: str, source: str, scope: Mapping[str, Any]) -> Wrapped:
    """Compiles a source and returns its function `call`. `scope` maps names in the source to objects."""
    file, given = programs.new_file(name), {name: value for name, value in scope.items() if name not in _SCOPE}
    scope = {**_SCOPE, **given}
    exec(compile(source, file, "exec"), scope)
    call = scope["call"]
    call._boxed_call = True
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    weakref.finalize(call, linecache.cache.pop, file, None)
    return Wrapped(source, call, given)


class Text:
    """Python expressions, and the objects that they refer to."""

    def __init__(self, name: str, beside: Text | None = None) -> None:
        """`beside` is text of the same module, whose objects are shared."""
        self.name = name
        self.scope: dict[str, Any] = dict(_SCOPE) if beside is None else beside.scope
        self.callees: dict[Any, str] = {} if beside is None else beside.callees

    def bound(self, name: str, value: Any) -> str:
        """A global of the function's module that holds `value`, called `name` or similar."""
        name = name if name.isidentifier() and not keyword.iskeyword(name) else "_object"
        own = next(
            n for n in itertools.chain([name], (f"{name}_{k}" for k in itertools.count(1))) if n not in self.scope
        )
        self.scope[own] = value
        return own

    def value(self, value: Any) -> str:
        """The text of a library call's argument."""
        if isinstance(value, Argument):
            return value.value if isinstance(value.value, str) else self.number(value.value)
        if isinstance(value, list):
            return "[" + ", ".join(self.value(v) for v in value) + "]"
        if isinstance(value, tuple):
            return _tuple(self.value(v) for v in value)
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.value(k)}: {self.value(v)}" for k, v in value.items()) + "}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"float('{value}')"
        if isinstance(value, complex):
            return repr(ComplexNumber(value))
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        name = str(getattr(value, "__name__", type(value).__name__))
        return self.bound("_" + name.replace(".", "_"), value)

    def callee(self, line: lines.CallLibrary) -> str:
        """A global that holds the function that calls the operator, such as aten_sort_default."""
        target, called = line.target, tensors.caller(line)
        if called not in self.callees:
            name = str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", "operator")
            self.callees[called] = self.bound(name.replace(".", "_"), called)
        return self.callees[called]

    def number(self, value: Any) -> str:
        return number(value)

    def numbers_of(self, values: Iterable[sympy.Basic]) -> str:
        return _tuple([self.number(value) for value in values])

    def library_call(self, line: lines.CallLibrary) -> str:
        args = [self.value(a) for a in line.args]
        args += [f"{name}={self.value(v)}" for name, v in line.kwargs if not keyword.iskeyword(name)]
        args += [f"**{{{name!r}: {self.value(v)}}}" for name, v in line.kwargs if keyword.iskeyword(name)]
        return f"{self.callee(line)}({', '.join(args)})"

    def view(self, line: lines.MakeView) -> tuple[str, list[str]]:
        """The text of a view, and the names in it."""
        view, offset = line.view, self.number(line.view.offset)
        base = view.buffer if line.dtype is None else f"{view.buffer}.view({line.dtype})"
        symbols = {s.name for value in (*view.sizes, *view.strides, view.offset) for s in value.free_symbols}
        if line.alias:
            offset = f"{base}.storage_offset()" + ("" if offset == "0" else f" + {offset}")
            text = f"{base}.as_strided({self.numbers_of(view.sizes)}, {self.numbers_of(view.strides)}, {offset})"
        else:
            text = self.reinterpreted(base, view, offset)
        return text, [view.buffer, *sorted(symbols)]

    def reinterpreted(self, base: str, layout: Any, offset: str) -> str:
        """`base` with the sizes and strides of a buffer or view."""
        return f"_reinterpret({base}, {self.numbers_of(layout.sizes)}, {self.numbers_of(layout.strides)}, {offset})"

    def picked_size(self, line: lines.PickSize) -> str:
        read = {"item": "", "offset": ".storage_offset()"}.get(line.what, f".{line.what}({line.dim})")
        return f"{_picked(line.source, line.k)}{read}"


class _Writer(Text, lines.LineWriter):
    """Collects the text of the function."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.body: list[str] = []
        self.device: torch.device | None = None
        self.numbers: dict[sympy.Expr, str] = {}

    def add(self, text: str) -> None:
        self.body.append(INDENT + text)

    def source(self) -> str:
        return "\n".join([f"# polytile program {self.name}", "", "def call(args):", *self.body, ""])

    # numbers ---------------------------------------------------------------------------------------------------------

    def number(self, value: Any) -> str:
        """The text of a symbolic number. An expression with several operations is computed once, into a variable:
        computing the strides of an image after convolutions takes longer than an operator call."""
        if not isinstance(value, sympy.Expr) or _operations(value) < OPERATIONS:
            return number(value)
        return self._computed(value)

    def _computed(self, value: sympy.Expr) -> str:
        """The variable that holds `value`."""
        if value not in self.numbers:
            parts = sorted((p for p in value.atoms(sympy.Function) if p != value), key=lambda p: (sympy.count_ops(p), str(p)))
            known = {part: sympy.Symbol(self._computed(part)) for part in parts}
            name = f"_n{len(self.numbers)}"
            self.add(f"{name} = {number(value.xreplace(known))}")
            self.numbers[value] = name
        return self.numbers[value]

    # lines: the arguments --------------------------------------------------------------------------------------------

    def comment(self, line: lines.Comment) -> None:
        self.body += [INDENT + "# " + text for text in line.text.splitlines()]

    def define_kernel(self, line: lines.DefineKernel) -> None:
        self.scope[line.name] = line.run

    def constant(self, line: lines.Constant) -> None:
        self.scope[line.name] = line.value

    def take_arguments(self, line: lines.TakeArguments) -> None:
        if line.names:
            self.add(", ".join(line.names) + ("," if len(line.names) == 1 else "") + " = args")
        self.add("args.clear()")

    def bind_size(self, line: lines.BindSize) -> None:
        self.add(f"{line.symbol} = {self.number(line.value)}")

    def read_size(self, line: lines.ReadSize) -> None:
        self.add(f"{line.symbol} = {line.tensor}.{'stride' if line.stride else 'size'}({line.dim})")

    def check_sizes(self, line: lines.CheckSizes) -> None:
        self.add(f"if not ({number(line.condition)}):")
        self.add(f"    raise {line.error.__name__}({line.message!r})")

    # lines: memory ---------------------------------------------------------------------------------------------------

    def allocate(self, line: lines.Allocate) -> None:
        buffer = line.buffer
        layout = f"{self.numbers_of(buffer.sizes)}, {self.numbers_of(buffer.strides)}"
        if buffer.device.type == "cpu":
            self.add(f"{buffer.name} = _empty_cpu({layout}, {buffer.dtype})")
        elif buffer.device == self.device and buffer.device.type == "cuda":
            self.add(f"{buffer.name} = _empty_cuda({layout}, {buffer.dtype})")
        else:
            where = f"dtype={buffer.dtype}, device={str(buffer.device)!r}"
            self.add(f"{buffer.name} = torch.empty_strided({layout}, {where})")

    def free(self, line: lines.Free) -> None:
        self.add(f"del {line.name}")

    def reuse(self, line: lines.Reuse) -> None:
        new, old = line.buffer, line.old
        same = new.sizes == old.sizes and new.strides == old.strides
        text = old.name if same else self.reinterpreted(old.name, new, "0")
        self.add(f"{new.name} = {text}  # reuse")

    def make_view(self, line: lines.MakeView) -> None:
        self.add(f"{line.name} = {self.view(line)[0]}")

    # lines: calls ----------------------------------------------------------------------------------------------------

    def find_packed_weight(self, line: lines.FindPackedWeight) -> None:
        self.add(f"{line.name} = {self.bound('_find_' + line.name, line.find)}({line.weight})")
        if line.symbol is not None:
            self.add(f"{line.symbol} = 0 if {line.name} is None else 1")

    def call_kernel(self, line: lines.CallKernel) -> None:
        self.add(f"{line.kernel}({', '.join([*line.tensors, *map(self.number, line.sizes)])})")

    def call_library(self, line: lines.CallLibrary) -> None:
        call = self.library_call(line)
        self.add(call if line.result is None else f"{line.result} = {call}")

    def pick_output(self, line: lines.PickOutput) -> None:
        self.add(f"{line.buffer.name} = _as_declared({_picked(line.source, line.k)}, {self.numbers_of(line.buffer.strides)})")

    def pick_size(self, line: lines.PickSize) -> None:
        self.add(f"{line.symbol} = {self.picked_size(line)}")

    def on_device(self, line: lines.OnDevice) -> None:
        self.device, index = line.device, line.device.index or 0
        self.add(f"if {self.bound('_current_device', tensors.current_device(line.device.type))}() != {index}:")
        self.add(f"    with torch.{line.device.type}.device({index}):")
        self.add("        return call(args)")

    def return_(self, line: lines.Return) -> None:
        values = [v if isinstance(v, str) else "None" if v is None else self.number(v) for v in line.values]
        self.add(f"return [{', '.join(values)}]")




_operations = functools.lru_cache(4096)(sympy.count_ops)


@functools.lru_cache(4096, typed=True)
def number(value: sympy.Basic | bool | float) -> str:
    """A symbolic number or condition as a Python expression."""
    return str(_printer.doprint(value))


def _tuple(items: Iterable[str]) -> str:
    items = list(items)
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _picked(source: str, k: int | None) -> str:
    return source if k is None else f"{source}[{k}]"
