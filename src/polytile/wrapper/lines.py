"""The structured lines of a wrapper: everything a program does, without text that a backend would have to parse.

Names are identifiers, sizes are sympy expressions, and tensors and kernels are the objects themselves. Only `Comment`
contains prose; the message of `CheckSizes`, and strings among a library call's arguments, are values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from polytile.ir.buffer import Buffer, View
from polytile.ir.template import ComputedWeight, PackedWeight
from polytile.runtime.weights import Site


@dataclass(frozen=True)
class KernelCall:
    """One call of a loop or template: `run(*tensors, *sizes)` with buffers, views or packed weights, and integers.
    `site` looks up the packed weight, if the tensors include one. If they include a computed weight, it is looked up in place of
    the call."""

    name: str
    run: Callable[..., None] = field(compare=False, repr=False)
    tensors: tuple[str | View | PackedWeight | ComputedWeight, ...]
    sizes: tuple[sympy.Expr, ...]
    site: Site | None = field(default=None, compare=False, repr=False)

    @property
    def packed_weight(self) -> PackedWeight | None:
        """The argument that each call looks up anew, if there is one."""
        return next((tensor for tensor in self.tensors if isinstance(tensor, PackedWeight)), None)

    @property
    def computed_weight(self) -> ComputedWeight | None:
        """The result that is looked up in place of the call, if it is one."""
        return next((tensor for tensor in self.tensors if isinstance(tensor, ComputedWeight)), None)


@dataclass(frozen=True)
class Line:
    """Base of all lines."""


@dataclass(frozen=True)
class Comment(Line):
    """Describes the following lines: their source operators, the reason for a library call."""

    text: str


# what the program is given -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DefineKernel(Line):
    """Defines `name` as the kernel `run` for the CallKernels that follow."""

    name: str
    run: Callable[..., None] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Constant(Line):
    """A tensor that the graph holds."""

    name: str
    value: torch.Tensor = field(compare=False, repr=False)


@dataclass(frozen=True)
class TakeArguments(Line):
    """Binds the caller's arguments to names and empties the caller's list, so that inputs can be freed early. Arguments
    in `kept`, such as weights, outlive the call."""

    names: tuple[str, ...]
    kept: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BindSize(Line):
    """Binds `symbol` to an expression over symbols and integer arguments bound before."""

    symbol: sympy.Symbol
    value: sympy.Expr


@dataclass(frozen=True)
class ReadSize(Line):
    """Binds `symbol` to the size of `tensor` along `dim` or, if `stride`, to its stride, in elements."""

    symbol: sympy.Symbol
    tensor: str
    dim: int
    stride: bool = False


@dataclass(frozen=True)
class CheckSizes(Line):
    """Raises error(message) unless the condition on sizes holds."""

    condition: Any
    message: str
    error: type[Exception]


# memory --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocate(Line):
    """Allocates memory for a buffer, under its name."""

    buffer: Buffer


@dataclass(frozen=True)
class Free(Line):
    """Ends the use of the name."""

    name: str


@dataclass(frozen=True)
class Reuse(Line):
    """Places `buffer` in the memory of `old`, which is freed here, or after the next kernel if that computes in place."""

    buffer: Buffer
    old: Buffer


@dataclass(frozen=True)
class MakeView(Line):
    """Makes `name` a strided view of a buffer. `dtype`, if given, reinterprets its bits as another dtype of the same
    width. With `alias` the view is a result, and must look like a view to the user."""

    name: str
    view: View
    dtype: torch.dtype | None = None
    alias: bool = False


# calls ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FindPackedWeight(Line):
    """Sets `name` to the copy that `find` returns for the tensor `weight`. For a packed one, which may be None, `symbol` is set
    to 1, or 0 for None; a computed one always exists."""

    name: str
    symbol: sympy.Symbol | None
    weight: str
    find: Callable[[torch.Tensor], torch.Tensor | None] = field(compare=False, repr=False)


@dataclass(frozen=True)
class CallKernel(Line):
    """Calls a kernel named by a DefineKernel, with these tensors and integers."""

    kernel: str
    tensors: tuple[str, ...]
    sizes: tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class Argument:
    """An argument of a library call that is not a plain value: the name of a tensor, or a symbolic number."""

    value: str | sympy.Basic


def arguments_in(value: object) -> Iterator[Argument]:
    """The Arguments among what a library call is given."""
    if isinstance(value, Argument):
        yield value
    elif isinstance(value, dict):
        yield from arguments_in([*value.keys(), *value.values()])
    elif isinstance(value, tuple | list):
        for part in value:
            yield from arguments_in(part)


@dataclass(frozen=True)
class CallLibrary(Line):
    """`result = target(*args, **kwargs)`. With `result` None, the call is made for its effect on its arguments."""

    result: str | None
    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class PickOutput(Line):
    """Sets `buffer` to output `k` of a library call (None: its only result), in the layout that the program was
    compiled for."""

    buffer: Buffer
    source: str
    k: int | None


@dataclass(frozen=True)
class PickSize(Line):
    """Binds `symbol` to a library call's output `k` (None: its only result): to the "item" itself, its "size" or
    "stride" along `dim`, or its "offset" in storage, in elements."""

    symbol: sympy.Symbol
    source: str
    k: int | None = None
    dim: int | None = None
    what: str = "item"


@dataclass(frozen=True)
class OnDevice(Line):
    """Before the arguments: the whole program runs with this device current."""

    device: torch.device


@dataclass(frozen=True)
class Return(Line):
    """Returns the results: names of tensors, symbolic or plain numbers, or None."""

    values: tuple[str | sympy.Basic | None, ...]


class LineWriter(ABC):
    """Writes lines for one target: one method per kind of line."""

    def write(self, line: Line) -> None:
        """Writes any line."""
        getattr(self, _METHODS[type(line)].__name__)(line)

    @abstractmethod
    def comment(self, line: Comment) -> None: ...

    @abstractmethod
    def define_kernel(self, line: DefineKernel) -> None: ...

    @abstractmethod
    def constant(self, line: Constant) -> None: ...

    @abstractmethod
    def take_arguments(self, line: TakeArguments) -> None: ...

    @abstractmethod
    def bind_size(self, line: BindSize) -> None: ...

    @abstractmethod
    def read_size(self, line: ReadSize) -> None: ...

    @abstractmethod
    def check_sizes(self, line: CheckSizes) -> None: ...

    @abstractmethod
    def allocate(self, line: Allocate) -> None: ...

    @abstractmethod
    def free(self, line: Free) -> None: ...

    @abstractmethod
    def reuse(self, line: Reuse) -> None: ...

    @abstractmethod
    def make_view(self, line: MakeView) -> None: ...

    @abstractmethod
    def find_packed_weight(self, line: FindPackedWeight) -> None: ...

    @abstractmethod
    def call_kernel(self, line: CallKernel) -> None: ...

    @abstractmethod
    def call_library(self, line: CallLibrary) -> None: ...

    @abstractmethod
    def pick_output(self, line: PickOutput) -> None: ...

    @abstractmethod
    def pick_size(self, line: PickSize) -> None: ...

    @abstractmethod
    def on_device(self, line: OnDevice) -> None: ...

    @abstractmethod
    def return_(self, line: Return) -> None: ...


_METHODS: dict[type[Line], Callable[..., None]] = {
    Comment: LineWriter.comment,
    DefineKernel: LineWriter.define_kernel,
    Constant: LineWriter.constant,
    TakeArguments: LineWriter.take_arguments,
    BindSize: LineWriter.bind_size,
    ReadSize: LineWriter.read_size,
    CheckSizes: LineWriter.check_sizes,
    Allocate: LineWriter.allocate,
    Free: LineWriter.free,
    Reuse: LineWriter.reuse,
    MakeView: LineWriter.make_view,
    FindPackedWeight: LineWriter.find_packed_weight,
    CallKernel: LineWriter.call_kernel,
    CallLibrary: LineWriter.call_library,
    PickOutput: LineWriter.pick_output,
    PickSize: LineWriter.pick_size,
    OnDevice: LineWriter.on_device,
    Return: LineWriter.return_,
}
