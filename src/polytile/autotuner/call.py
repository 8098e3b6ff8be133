"""One launch of an autotuned kernel as the user wrote it, and the parts of it on which a choice depends."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from triton.runtime._async_compile import FutureKernel

from polytile.autotuner.compiling import Work

if TYPE_CHECKING:
    from polytile.autotuner.quick import Route


class _Launching:
    """The launch that a thread is in. Candidates find the arguments there that are neither tensors nor sizes."""

    __slots__ = ("call", "route")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.route: Route | None = None
        """What is known of calls like this one (quick.py)."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.launch = _Launching()


this_thread = _Thread()


def tensor_in(value: Any) -> torch.Tensor | None:
    """The tensor of an argument: itself, or that of a host-side tensor descriptor."""
    if isinstance(value, torch.Tensor):
        return value
    base = getattr(value, "base", None)
    return base if isinstance(base, torch.Tensor) else None


def plain(value: Any) -> Any:
    """A value without its triton.language.constexpr wrapper."""
    return getattr(value, "value", value) if type(value).__name__ == "constexpr" else value


def text_of(value: Any) -> str:
    """The value of an argument as text that is the same in every process."""
    said = str(value)
    return said if " at 0x" not in said else str(getattr(value, "__qualname__", type(value).__qualname__))


class Call:
    """A launch.

    Attributes
    ----------
    args, kwargs
        The arguments of `kernel[grid](...)`; `kwargs` includes the grid.
    tensors
        Names of the arguments that are tensors on the launch's device.
    flat
        These tensors, then the sizes named in `sizes`: the arguments of a MultiKernel.
    left
        The configs that pruning left, by sizes and by the number of configs that it was asked about.
    losers
        Names of the configs that are not worth timing for it.
    kind
        Everything else that distinguishes MultiKernels, including `constants`, for which Triton compiles separate kernels.
    """

    __slots__ = (
        "args", "begun", "device", "flat", "kind", "kwargs", "left", "losers", "names", "returned", "sizes", "tensors", "tried",
    )  # fmt: skip

    def __init__(
        self, names: Sequence[str], keys: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any],
        constants: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.names, self.args, self.kwargs = names, args, kwargs
        self.returned: Any = None
        self.tried = False
        """Whether candidates were tried on its arguments."""
        self.losers: Collection[str] = ()
        self.left: dict[tuple[tuple[int, ...], int], Sequence[Any]] = {}
        self.begun: dict[int, Any] = {}
        """Compilations in other threads for this launch, by the id of the config."""
        given = self.given()
        tensors = [(name, tensor) for name, value in given.items() if (tensor := tensor_in(value)) is not None]
        device = next((t.device for _, t in tensors if t.device.type != "cpu"), torch.device("cpu"))
        here = [(name, tensor) for name, tensor in tensors if tensor.device == device]
        of_keys = [(name, plain(given[name])) for name in keys if name in given]
        sizes = [(name, value) for name, value in of_keys if type(value) is int and value >= 0]
        of_constants = [(name, plain(given[name])) for name in constants if name in given and name not in keys]
        unsized = [(name, value) for name, value in of_keys if type(value) is not int or value < 0]
        others = [(name, text_of(value)) for name, value in (*unsized, *of_constants)]
        self.device = device
        self.tensors = tuple(name for name, _ in here)
        self.sizes = tuple(name for name, _ in sizes)
        self.flat: tuple[Any, ...] = (*(tensor for _, tensor in here), *(value for _, value in sizes))
        self.kind = (device, tuple((name, tensor.dtype) for name, tensor in here), self.sizes, tuple(others))

    @property
    def sizes_given(self) -> tuple[int, ...]:
        """The values of `sizes`."""
        return tuple(self.flat[len(self.tensors) :])

    @property
    def sizes_by_name(self) -> dict[str, int]:
        return dict(zip(self.sizes, self.sizes_given, strict=True))

    def given(self) -> dict[str, Any]:
        """The arguments of the kernel's own parameters, by name."""
        own = dict(zip(self.names, self.args, strict=False))
        return own | {name: self.kwargs[name] for name in self.names if name in self.kwargs}

    def with_flat(self, flat: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with other tensors and sizes."""
        ints = dict(zip(self.sizes, flat[len(self.tensors) :], strict=True))
        tensors = dict(zip(self.tensors, flat, strict=False))

        def other(name: str, value: Any) -> Any:
            if name in tensors:
                own = isinstance(value, torch.Tensor)
                return tensors[name] if own else dataclasses.replace(value, base=tensors[name])
            return ints.get(name, value) if type(value) is int else value

        args = tuple(other(name, value) for name, value in zip(self.names, self.args, strict=False))
        return args, {name: other(name, value) for name, value in self.kwargs.items()}

    def withdraw(self) -> None:
        """Cancel compilations that have not started because of a budget. A later launch may still need them."""
        for kernel in self.begun.values():
            if isinstance(kernel, FutureKernel) and isinstance(kernel.future, Work):
                kernel.future.withdraw()
        self.begun.clear()

    def copied(self) -> Call:
        """The same call on copies of its tensors, which the program does not change."""
        copies = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in self.flat]
        args, kwargs = self.with_flat(copies)
        other = object.__new__(Call)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.args, other.kwargs, other.flat = args, kwargs, tuple(copies)
        return other
