"""The C++ backend of the wrapper: lines become a C function that accesses tensors, kernels and Python only through
runtime/program.h.

Sizes are variables of the function, exact in 64 bits. A line without a C form, such as a library call, calls a small
Python function. The text contains no program name, comment or address, so equal programs share one object.

The tuple IN_C in the program's Python text lists the objects behind the text's numbers, so whoever loads the Python
text has the C text too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from polytile.ir.aliases import returns_alias
from polytile.runtime import program
from polytile.wrapper import c_numbers, lines, python
from polytile.wrapper.arena import Arena, arena, tensors_of
from polytile.wrapper.arguments import symbols_in
from polytile.wrapper.c_numbers import NotInC
from polytile.wrapper.lines import Line

FUNCTION = "polytile_program"
NAME = "IN_C"
"""The global of a program's Python text that holds its Unit."""


class NoProgramInC(Exception):
    """The lines have no C form, for the given reason; Python's wrapper runs them."""


@dataclass(frozen=True, eq=False)
class Unit:
    """A program in C: its text without the common header, and the objects behind its numbers."""

    text: str
    kernels: tuple[Callable[..., None], ...]
    parts: tuple[Callable[..., Any] | tuple[Callable[..., Any], tuple[Any, ...], tuple[str, ...]], ...]
    """What does the parts without a C form: Python functions, and library calls as (function, patterns of the arguments, names of
    the last ones), see UnitWriter.pattern."""
    constants: tuple[torch.Tensor, ...]
    errors: tuple[tuple[type[Exception], str], ...]
    arguments: int
    tensors: int
    memories: int
    device: int
    """Index of the GPU that it runs on; -1 for none."""

    @property
    def source(self) -> str:
        return f"{program.header()}\n{c_numbers.PRELUDE}\n{self.text}"


def write(all_lines: Sequence[Line], beside: python.Text) -> str:
    """The Unit of these lines as Python text, to be placed in a module beside their Python form. Raises NoProgramInC."""
    writer = UnitWriter(all_lines, python.Text(beside.name, beside))
    try:
        for line in all_lines:
            writer.write(line)
    except (NotInC, LookupError) as error:
        raise NoProgramInC(f"{type(line).__name__}: {error}") from error
    return writer.source()


class UnitWriter(lines.LineWriter):
    """Collects the function's body and the objects behind its numbers."""

    def __init__(self, all_lines: Sequence[Line], text: python.Text) -> None:
        self.text = text
        self.functions: list[str] = []
        """The text of the Python functions among the parts."""
        self.parts: list[str] = []
        self.views: set[str | None] = set()
        """Results of library calls that may be views."""
        self.body: list[str] = []
        self.symbols = {symbol.name: symbol for line in all_lines for symbol in symbols_in(line)}
        self.read = {name for line in all_lines for name in tensors_of(line)}
        self.arena = arena(all_lines, known_with_arguments(all_lines))
        self.tensors: dict[str, str] = {}
        """The C constant of each tensor's number, in the order of the numbers."""
        self.kernels: dict[str, int] = {}
        self.constants: list[str] = []
        self.errors: list[tuple[type[Exception], str]] = []
        self.numbers: dict[sympy.Basic, str] = {}
        self.arrays: dict[tuple[sympy.Expr, ...], str] = {}
        self.arguments = 0
        self.device = -1
        self.accepted = False
        self.computed = False
        """Whether a number has been computed since `bad` was last checked."""

    def write(self, line: Line) -> None:
        if not self.accepted and not isinstance(line, _BEFORE_ACCEPTANCE):
            self.accept()
        super().write(line)

    def accept(self) -> None:
        self.accepted = True
        self.check()
        self.add("api->accept(f);")
        if self.arena is not None:
            self.make_arena(self.arena)

    def source(self) -> str:
        """The Unit as Python text."""
        body = self.function()
        errors = [f"({error.__name__}, {message!r})" for error, message in self.errors]
        held = [list(self.kernels), self.parts, self.constants, errors]
        counts = self.arguments, len(self.tensors), self.memories, self.device
        after = ", ".join([*map(_tuple, held), *map(str, counts)])
        return "\n".join([*self.functions, f'{NAME} = (r"""', f'{body}""", {after})', ""])

    def function(self) -> str:
        head = ["#define DO(call) if ((call) != 0) return RAISED", ""]
        head += [f"enum {{ {', '.join(self.tensors.values())} }};", ""] if self.tensors else []
        return "\n".join([*head, f"int {FUNCTION}(const Api *api, Frame *f)", "{", "    int bad = 0;", *self.body, "}", ""])

    @property
    def memories(self) -> int:
        """Number of memories in the arena."""
        return 0 if self.arena is None else len(self.arena.memories)

    # text ------------------------------------------------------------------------------------------------------------

    def add(self, text: str) -> None:
        self.body.append("    " + text)

    def do(self, call: str) -> None:
        """Emits a call that may fail, after checking the numbers computed before it."""
        self.check()
        self.add(f"DO({call});")

    def check(self) -> None:
        if self.computed:
            self.computed = False
            self.add(f"if (bad) return {'api->overflow(f)' if self.accepted else 'REFUSED'};")

    def tensor(self, name: str) -> str:
        return self.tensors.setdefault(name, f"t_{_identifier(name)}")

    def symbol(self, symbol: sympy.Symbol) -> str:
        return f"n_{_identifier(symbol.name)}"

    def number(self, value: Any) -> str:
        """The text of a symbolic integer. An expression with operations is computed once, into a variable."""
        value = sympy.sympify(value)
        if value.is_Atom:
            return c_numbers.integer(value, self.symbol)
        if value not in self.numbers:
            self.computed = True
            name = f"c{len(self.numbers)}"
            self.numbers[value] = name
            try:
                text = c_numbers.integer(value, self.symbol)
            except NotInC:
                self.python_number(python.number(value), _names(value), name)
            else:
                self.add(f"const int64_t {name} = {text};")
        return self.numbers[value]

    def array(self, values: Iterable[Any]) -> str:
        """A variable that holds an array of numbers; equal arrays share one."""
        key = tuple(sympy.sympify(value) for value in values)
        if not key:
            return "0"
        if key not in self.arrays:
            items = ", ".join(self.number(value) for value in key)
            self.arrays[key] = f"a{len(self.arrays)}"
            static = "static " if all(isinstance(value, sympy.Integer) for value in key) else ""
            self.add(f"{static}const int64_t {self.arrays[key]}[] = {{{items}}};")
        return self.arrays[key]

    def layout(self, tensor: Any) -> str:
        """The layout of a buffer or view."""
        sizes, strides = self.array(tensor.sizes), self.array(tensor.strides)
        return f"&(const Layout){{{len(tensor.sizes)}, {sizes}, {strides}, {program.number_of(tensor.dtype)}}}"

    # what Python does ------------------------------------------------------------------------------------------------

    def expression(self, text: str, names: Sequence[str]) -> int:
        """The number of a new Python function that evaluates `text`. It takes the objects among the names, then the numbers."""
        parameters = [*filter(self.is_object, names), *(name for name in names if not self.is_object(name))]
        name = f"_part{len(self.parts)}"
        self.functions += [f"def {name}({', '.join(parameters)}):", f"    return {text}", ""]
        return self.part(name)

    def part(self, name: str) -> int:
        self.parts.append(name)
        return len(self.parts) - 1

    def is_object(self, name: str) -> bool:
        symbol = self.symbols.get(name)
        return symbol is None or not symbol.is_integer

    def given(self, names: Sequence[str]) -> str:
        """The objects and integers of these names as arguments of the Api's calls."""
        objects = [self.tensor(name) for name in names if self.is_object(name)]
        integers = [self.symbol(self.symbols[name]) for name in names if not self.is_object(name)]
        return _given(objects, integers)

    def python(self, text: str, names: Sequence[str], result: str | None) -> None:
        """Sets `result` to the value of the Python expression `text` over these names."""
        where = "-1" if result is None else self.tensor(result)
        self.do(f"api->python(f, {self.expression(text, names)}, {where}, {self.given(names)})")

    def python_number(self, text: str, names: Sequence[str], variable: str) -> None:
        """Declares the C variable `variable` as the integer value of the Python expression `text`."""
        self.add(f"int64_t {variable};")
        self.do(f"api->number(f, {self.expression(text, names)}, &{variable}, {self.given(names)})")

    # lines: the arguments --------------------------------------------------------------------------------------------

    def comment(self, line: lines.Comment) -> None:
        """Omitted, so that programs that differ only in comments share one object. The Python text has it."""

    def define_kernel(self, line: lines.DefineKernel) -> None:
        self.kernels[line.name] = len(self.kernels)

    def constant(self, line: lines.Constant) -> None:
        self.add(f"DO(api->constant(f, {len(self.constants)}, {self.tensor(line.name)}));")
        self.constants.append(line.name)

    def on_device(self, line: lines.OnDevice) -> None:
        self.device = line.device.index or 0
        self.add(f"if (!api->on_device({self.device})) return REFUSED;")

    def take_arguments(self, line: lines.TakeArguments) -> None:
        self.arguments = len(line.names)
        for position, name in enumerate(line.names):
            symbol = self.symbols.get(name)
            if name in self.read:
                self.add(f"if (api->take_tensor(f, {position}, {self.tensor(name)}) != 0) return REFUSED;")
            elif symbol is not None and symbol.is_integer:
                self.add(f"int64_t {self.symbol(symbol)};")
                self.add(f"if (api->take_integer(f, {position}, &{self.symbol(symbol)}) != 0) return REFUSED;")
            else:
                self.add(f"if (api->take_value(f, {position}, {self.tensor(name)}) != 0) return REFUSED;")

    def bind_size(self, line: lines.BindSize) -> None:
        if not line.symbol.is_integer:
            self.python(python.number(line.value), _names(line.value), line.symbol.name)
            return
        value = self.number(line.value)
        self.add(f"const int64_t {self.symbol(line.symbol)} = {value};")

    def read_size(self, line: lines.ReadSize) -> None:
        what, tensor = "strides" if line.stride else "sizes", self.tensor(line.tensor)
        read = f"{what}_of_{tensor}"
        if f"    const int64_t *{read} = api->{what}(f, {tensor});" not in self.body:
            self.add(f"const int64_t *{read} = api->{what}(f, {tensor});")
            self.add(f"if ({read} == 0) return REFUSED;")
        self.add(f"const int64_t {self.symbol(line.symbol)} = {read}[{line.dim}];")

    def check_sizes(self, line: lines.CheckSizes) -> None:
        try:
            holds = c_numbers.condition(line.condition, self.symbol)
            self.computed = True
        except NotInC:
            names = _names(line.condition)
            holds = f"k{len(self.errors)}"
            self.python_number(f"int(bool({python.number(line.condition)}))", names, holds)
        self.add(f"if (!({holds})) return bad ? api->overflow(f) : api->raise(f, {len(self.errors)});")
        self.errors.append((line.error, line.message))

    # lines: memory ---------------------------------------------------------------------------------------------------

    def make_arena(self, arena: Arena) -> None:
        """Allocates one block for all memories that only kernels access."""
        layouts, lives = [], []
        for memory in arena.memories:
            buffer, inside = memory.buffer, int(memory.inside)
            known = ("1", self.tensor(buffer)) if isinstance(buffer, str) else (str(buffer.dtype.itemsize), "-1")
            layouts.append("0" if isinstance(buffer, str) else self.layout(buffer))
            lives.append(f"{{{memory.first}, {memory.last}, {inside}, {', '.join(known)}}}")
        self.add(f"static const Life lives[] = {{{', '.join(lives)}}};")
        self.add(f"const Layout *const memories[] = {{{', '.join(layouts)}}};")
        self.do(f"api->arena(f, lives, memories, {len(arena.memories)}, {_device(arena.device)})")

    def allocate(self, line: lines.Allocate) -> None:
        buffer, layout = line.buffer, self.layout(line.buffer)
        number = None if self.arena is None else self.arena.numbers.get(buffer.name)
        how = f"allocate(f, {self.tensor(buffer.name)}" if number is None else f"carve(f, {self.tensor(buffer.name)}, {number}"
        self.do(f"api->{how}, {layout}, {_device(buffer.device)})")

    def free(self, line: lines.Free) -> None:
        if line.name in self.tensors:
            self.add(f"api->free(f, {self.tensor(line.name)});")

    def reuse(self, line: lines.Reuse) -> None:
        new, old = line.buffer, line.old
        same = new.sizes == old.sizes and new.strides == old.strides
        layout = "0" if same else self.layout(new)
        self.do(f"api->reuse(f, {self.tensor(new.name)}, {self.tensor(old.name)}, {layout})")

    def make_view(self, line: lines.MakeView) -> None:
        view = line.view
        if line.alias:
            self.python(*self.text.view(line), line.name)
            return
        layout, offset = self.layout(view), self.number(view.offset)
        bits = int(line.dtype is not None)
        name, base = self.tensor(line.name), self.tensor(view.buffer)
        self.do(f"api->view(f, {name}, {base}, {layout}, {offset}, {view.dtype.itemsize}, {bits})")

    # lines: calls ----------------------------------------------------------------------------------------------------

    def find_packed_weight(self, line: lines.FindPackedWeight) -> None:
        number = self.part(self.text.bound("_find_" + line.name, line.find))
        self.do(f"api->python(f, {number}, {self.tensor(line.name)}, {_ints('int', [self.tensor(line.weight)])}, 1, 0, 0)")
        if line.symbol is not None:
            self.add(f"const int64_t {self.symbol(line.symbol)} = !api->is_none(f, {self.tensor(line.name)});")

    def call_kernel(self, line: lines.CallKernel) -> None:
        tensors, sizes = [self.tensor(name) for name in line.tensors], [self.number(size) for size in line.sizes]
        self.do(f"api->kernel(f, {self.kernels[line.kernel]}, {_given(tensors, sizes)})")

    def call_library(self, line: lines.CallLibrary) -> None:
        if returns_alias(line.target):
            self.views.add(line.result)
        objects: list[str] = []
        integers: list[str] = []
        try:
            args = [self.pattern(value, objects, integers) for value in (*line.args, *dict(line.kwargs).values())]
        except NotInC:
            given = (argument.value for argument in lines.arguments_in((line.args, line.kwargs)))
            names = dict.fromkeys(name for value in given for name in ([value] if isinstance(value, str) else _names(value)))
            self.python(self.text.library_call(line), list(names), line.result)
            return
        part = self.part(f"({self.text.callee(line)}, {_tuple(args)}, {_tuple(repr(name) for name, _ in line.kwargs)})")
        where = "-1" if line.result is None else self.tensor(line.result)
        self.do(f"api->python(f, {part}, {where}, {_given(objects, integers)})")

    def pattern(self, value: Any, objects: list[str], integers: list[str]) -> str:
        """The Python text of a library call's argument. It has `...` in place of each object that the program gives, and
        `NotImplemented` in place of each integer; they are added to the lists. Raises NotInC for an argument of another kind."""
        if isinstance(value, list):
            return f"[{', '.join(self.pattern(each, objects, integers) for each in value)}]"
        if not isinstance(value, lines.Argument):
            if any(lines.arguments_in(value)):
                raise NotInC(f"the program gives parts of a {type(value).__name__}")
            return self.text.value(value)
        name = str(value.value)
        if isinstance(value.value, str) or (name in self.symbols and self.is_object(name)):
            objects.append(self.tensor(name))
            return "..."
        if not value.value.is_integer:
            raise NotInC(f"{name} is no integer")
        integers.append(self.number(value.value))
        return "NotImplemented"

    def pick_output(self, line: lines.PickOutput) -> None:
        buffer, k, is_view = line.buffer, -1 if line.k is None else line.k, int(line.source in self.views)
        name, source = self.tensor(buffer.name), self.tensor(line.source)
        self.do(f"api->pick(f, {name}, {source}, {k}, {self.layout(buffer)}, {is_view})")

    def pick_size(self, line: lines.PickSize) -> None:
        text = self.text.picked_size(line)
        if not line.symbol.is_integer:
            self.python(text, [line.source], line.symbol.name)
            return
        self.python_number(text, [line.source], self.symbol(line.symbol))

    def return_(self, line: lines.Return) -> None:
        for k, value in enumerate(line.values):
            if value is None:
                self.do("api->give_none(f)")
            elif isinstance(value, str):
                self.do(f"api->give_tensor(f, {self.tensor(value)})")
            elif type(value) is int or (isinstance(value, sympy.Expr) and value.is_integer):
                number = self.number(value)
                self.do(f"api->give_integer(f, {number})")
            else:
                self.python(python.number(value), _names(value), result := f"result {k}")
                self.do(f"api->give_tensor(f, {self.tensor(result)})")
        self.add("return RETURNED;")


_BEFORE_ACCEPTANCE = (
    lines.Comment, lines.DefineKernel, lines.Constant, lines.OnDevice, lines.TakeArguments, lines.BindSize, lines.ReadSize,
)  # fmt: skip
"""Lines that Python's wrapper may safely repeat if the program in C declines the call."""



def _identifier(name: str) -> str:
    """`name` in the letters of a C identifier; distinct names stay distinct."""
    return re.sub(r"\W|_(?=[0-9a-f]+_)", lambda match: f"_{ord(match[0]):x}_", name, flags=re.ASCII)


def _ints(kind: str, items: Sequence[str]) -> str:
    return f"(const {kind}[]){{{', '.join(items)}}}" if items else "0"


def _given(tensors: Sequence[str], integers: Sequence[str]) -> str:
    """Tensors and integers as arguments of the Api's calls."""
    return f"{_ints('int', tensors)}, {len(tensors)}, {_ints('int64_t', integers)}, {len(integers)}"


def _tuple(items: Iterable[str]) -> str:
    return "(" + "".join(f"{item}, " for item in items) + ")"


def _device(device: torch.device) -> str:
    return f"{program.DEVICE_TYPES[device.type]}, {device.index or 0}"


def known_with_arguments(all_lines: Sequence[Line]) -> set[str]:
    """Names of the symbols whose values are known before anything runs."""
    known: set[str] = set()
    for line in all_lines:
        if not isinstance(line, _BEFORE_ACCEPTANCE):
            break
        if isinstance(line, lines.TakeArguments):
            known |= set(line.names)
        elif isinstance(line, lines.BindSize | lines.ReadSize):
            known.add(line.symbol.name)
    return known


def _names(value: Any) -> list[str]:
    return sorted(symbol.name for symbol in getattr(value, "free_symbols", ()))


