"""A user's kernel as a torch operator, so that tracers see one node, with its gradient.

The operator makes the tensors that are written and returns them: `polytile_kernels::module_name(Tensor x, Tensor weight, SymInt[]
shape_y, ScalarType dtype_y) -> Tensor`. A tensor that the kernel changes in place is copied first.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polytile.dispatch.signature import Signature
from polytile.errors import SignatureError
from polytile.problem import Scalar

NAMESPACE = "polytile_kernels"
TYPES = {bool: "bool", int: "SymInt", float: "float", str: "str"}
"""The type of a keyword argument in an operator's schema, by that of its default."""

Launch = Callable[[Sequence[torch.Tensor], Mapping[str, Scalar]], None]
"""Runs a kernel on the tensors of its signature, with these keyword arguments."""

_names: set[str] = set()


@dataclass(frozen=True)
class Gradient:
    """A user's function that computes the gradients of the tensors that a kernel reads. It is called with those of the kernel's
    tensors, sizes and keyword arguments that its parameters name; `grad_y` is the gradient of the written tensor y."""

    kernel: str
    signature: Signature
    function: Callable[..., Any]
    parameters: tuple[str, ...]

    @staticmethod
    def of(kernel: str, signature: Signature, function: Callable[..., Any], keywords: Mapping[str, Scalar]) -> Gradient:
        """Raises SignatureError for a parameter that stands for nothing."""
        if not callable(function):
            raise SignatureError(f"the gradient of kernel {kernel!r} has to be a function; it was given {function!r}.")
        parameters = tuple(inspect.signature(function).parameters)
        gradients = [f"grad_{name}" for name in signature.written]
        known = [
            *signature.names,
            *gradients,
            *(name for name in signature.size_names if name.isidentifier()),
            *keywords,
        ]
        if lost := [name for name in parameters if name not in known]:
            raise SignatureError(
                f"the gradient of kernel {kernel!r} has the parameter {lost[0]!r}, which stands for nothing; it may name "
                f"{', '.join(known)}."
            )
        return Gradient(kernel, signature, function, parameters)

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the tensors that it needs."""
        return tuple(name for name in self.signature.names if name in self.parameters)

    def __call__(
        self, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int], keywords: Mapping[str, Scalar],
        gradients: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
        """The gradients of the tensors that are read, in order. Raises SignatureError where there are not as many."""
        by_name = {f"grad_{name}": one for name, one in zip(self.signature.written, gradients, strict=True)}
        values = {**tensors, **sizes, **keywords, **by_name}
        given = self.function(**{name: values[name] for name in self.parameters})
        returned = tuple(given) if isinstance(given, tuple | list) else (given,)
        if len(returned) != len(self.signature.read):
            raise SignatureError(
                f"the gradient of kernel {self.kernel!r} returned {len(returned)} gradients; it has to return one for each of "
                f"{', '.join(self.signature.read)}, or None in its place."
            )
        return returned


class Recorded(torch.autograd.Function):
    """A call in eager mode whose gradient is wanted: it writes the caller's own tensors."""

    @staticmethod
    def forward(ctx: Any, launch: Launch, gradient: Gradient, sizes: Any, keywords: Any, *tensors: Any) -> Any:
        launch(tensors, keywords)
        by_name = dict(zip(gradient.signature.names, tensors, strict=True))
        written = [by_name[name] for name in gradient.signature.written]
        ctx.mark_dirty(*written)
        ctx.mark_non_differentiable(*(one for one in written if not one.is_floating_point() and not one.is_complex()))
        ctx.save_for_backward(*(by_name[name] for name in gradient.kept))
        ctx.call = gradient, sizes, keywords
        return tuple(written)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient, sizes, keywords = ctx.call
        results = gradient(dict(zip(gradient.kept, ctx.saved_tensors, strict=True)), sizes, keywords, gradients)
        by_name = dict(zip(gradient.signature.read, results, strict=True))
        return (None, None, None, None, *(by_name.get(name) for name in gradient.signature.names))


class Operator:
    """The operator of one kernel. `launch` runs that; `keywords` are its keyword arguments with their defaults."""

    def __init__(self, place: str, signature: Signature, keywords: Mapping[str, Scalar], launch: Launch) -> None:
        self.signature, self.keywords, self.launch = signature, dict(keywords), launch
        self.made = tuple(name for name, _, role in signature.tensors if role == "out")
        """Names of the tensors that are written without being read."""
        self.definition = torch.library.custom_op(
            f"{NAMESPACE}::{_free(place)}", self._run, mutates_args=(), schema=self._schema()
        )
        self.definition.register_fake(lambda *given: self._results(self._tensors(given)))

    def __call__(self, tensors: Sequence[torch.Tensor], keywords: Mapping[str, Scalar]) -> None:
        """Calls the operator on copies of what a kernel is called with, and writes what it returns where it belongs."""
        by_name = dict(zip(self.signature.names, tensors, strict=True))
        given: list[Any] = [by_name[name] for name in self.signature.read]
        for name in self.made:
            given += [by_name[name].shape, by_name[name].dtype]
        if not self.signature.read:
            given.append(tensors[0].device)
        results = self.definition(*given, *keywords.values())
        written = self.signature.written
        for name, result in zip(written, (results,) if len(written) == 1 else results, strict=True):
            by_name[name].copy_(result)

    def register_gradient(self, gradient: Gradient, sizes_of: Callable[[Sequence[Any]], Sequence[int]]) -> None:
        """Has gradients flow through the operator."""
        signature = self.signature

        def keep(ctx: Any, inputs: Any, output: Any) -> None:
            written = (output,) if len(signature.written) == 1 else output
            by_name = dict(zip(signature.read, inputs, strict=False)) | dict(
                zip(signature.written, written, strict=True)
            )
            ctx.save_for_backward(*(by_name[name] for name in gradient.kept))
            ctx.sizes = dict(
                zip(signature.size_names, sizes_of([by_name[name] for name in signature.names]), strict=True)
            )
            ctx.keywords = dict(zip(self.keywords, inputs[len(inputs) - len(self.keywords) :], strict=True))

        def backward(ctx: Any, *gradients: Any) -> Any:
            kept = dict(zip(gradient.kept, ctx.saved_tensors, strict=True))
            results = gradient(kept, ctx.sizes, ctx.keywords, gradients)
            return (*results, *(None for _ in range(self._inputs - len(results))))

        self.definition.register_autograd(backward, setup_context=keep)

    @property
    def _inputs(self) -> int:
        return len(self.signature.read) + 2 * len(self.made) + (not self.signature.read) + len(self.keywords)

    def _schema(self) -> str:
        words = [f"Tensor {name}" for name in self.signature.read]
        for name in self.made:
            words += [f"SymInt[] shape_{name}", f"ScalarType dtype_{name}"]
        words += [] if self.signature.read else ["Device device"]
        words += [f"{TYPES[type(default)]} {name}" for name, default in self.keywords.items()]
        return f"({', '.join(words)}) -> ({', '.join('Tensor' for _ in self.signature.written)})"

    def _tensors(self, given: Sequence[Any]) -> list[torch.Tensor]:
        """The kernel's tensors for a call of the operator, those that it writes new."""
        left = iter(given)
        by_name = {name: next(left) for name in self.signature.read}
        for name, _, role in self.signature.tensors:
            if role == "inout":
                by_name[name] = by_name[name].clone(memory_format=torch.contiguous_format)
        shapes = {name: (next(left), next(left)) for name in self.made}
        device = by_name[self.signature.read[0]].device if self.signature.read else next(left)
        by_name |= {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}
        return [by_name[name] for name in self.signature.names]

    def _results(self, tensors: Sequence[torch.Tensor]) -> Any:
        by_name = dict(zip(self.signature.names, tensors, strict=True))
        results = tuple(by_name[name] for name in self.signature.written)
        return results[0] if len(results) == 1 else results

    def _run(self, *given: Any) -> Any:
        tensors = self._tensors(given)
        self.launch(tensors, dict(zip(self.keywords, given[len(given) - len(self.keywords) :], strict=True)))
        return self._results(tensors)


def _free(place: str) -> str:
    """A name for the operator of the function at this place, "module.function", that no other has."""
    plain = re.sub(r"\W+", "_", place)
    names = itertools.chain([plain], (f"{plain}_{number}" for number in itertools.count(2)))
    name = next(name for name in names if name not in _names)
    _names.add(name)
    return name
