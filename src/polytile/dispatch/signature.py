"""The signature of a hand-written kernel: names of its tensors and of their sizes, "x[M, N], weight[N] -> y[M, N]".

What stands left of the arrow is read, what stands right of it is written; a name on both sides is both. A size is a name, which
means the same number wherever it stands, or a number.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polytile.errors import InvalidInput, SignatureError

EXAMPLE = "x[M, N], weight[N] -> y[M, N]"

_TENSOR = re.compile(r"\s*([A-Za-z_]\w*)\s*\[([\w\s,]*)\]\s*(?:,|$)")
_SIZE = re.compile(r"[A-Za-z_]\w*|\d+")


@dataclass(frozen=True)
class Signature:
    """`tensors`: (name, its sizes, its role: "in", "out" or "inout") in the order of the arguments."""

    text: str
    tensors: tuple[tuple[str, tuple[str, ...], str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.tensors)

    @property
    def size_names(self) -> tuple[str, ...]:
        """The names of sizes, in the order in which they are first met."""
        return tuple(dict.fromkeys(size for _, sizes, _ in self.tensors for size in sizes if not size.isdigit()))

    def reduction(self, names: Sequence[str]) -> tuple[str, ...]:
        """`names`, each of which has to be one of `size_names`. Raises SignatureError for one that is not."""
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise SignatureError(f"reduction= takes a list of sizes' names, as ['N']; it was given {names!r}.")
        for name in names:
            if name not in self.size_names:
                raise SignatureError(
                    f"reduction= names {name!r}, which is no size of the signature {self.text!r}; "
                    f"it has {', '.join(self.size_names) or 'none'}."
                )
        return tuple(names)

    def check_taken(self, function: Callable[..., Any], what: str) -> None:
        """Raises SignatureError, naming `function` as `what`, where it cannot be called with the tensors, then the sizes."""
        arguments = (*self.names, *self.size_names)
        wanted = f"has to be a function of {len(arguments)} arguments, ({', '.join(arguments)})"
        if not callable(function):
            raise SignatureError(f"{what} {wanted}; it was given {function!r}.")
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            raise SignatureError(f"{what} {wanted}, and cannot be called so: {error}.") from None
        except ValueError:  # a function in C that does not say what it takes
            return

    def sizes(self, kernel: str, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """What `size_names` are in a call. Raises InvalidInput, naming `kernel` and the argument, for tensors that do not
        fit."""
        if len(tensors) != len(self.tensors):
            raise InvalidInput(
                f"kernel {kernel!r} takes {len(self.tensors)} tensors, {', '.join(self.names)}; it was given {len(tensors)}."
            )
        lengths: dict[str, int] = {}
        given_by: dict[str, str] = {}
        for (name, sizes, _), tensor in zip(self.tensors, tensors, strict=True):
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != len(sizes):
                what = f"shape {list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else f"type {type(tensor).__name__}"
                raise InvalidInput(
                    f"argument {name!r} of kernel {kernel!r} has {what}; it must be a tensor [{', '.join(sizes)}]."
                )
            for size, length in zip(sizes, tensor.shape, strict=True):
                known = int(size) if size.isdigit() else lengths.setdefault(size, length)
                given_by.setdefault(size, name)
                if known != length:
                    source = "" if size.isdigit() else f", which argument {given_by[size]!r} says is {known}"
                    raise InvalidInput(
                        f"argument {name!r} of kernel {kernel!r} has shape {list(tensor.shape)}: {length} stands where the "
                        f"signature {self.text!r} has {size}{source}."
                    )
        return tuple(lengths[name] for name in self.size_names)


def parsed(text: str) -> Signature:
    """The signature that `text` says. Raises SignatureError, with an example, for what is none."""
    if not isinstance(text, str):
        raise SignatureError(f"polytile.kernel takes a signature, as {EXAMPLE!r}; it was given {text!r}.")
    left, arrow, right = text.partition("->")
    read, written = _side(text, left), _side(text, right)
    if not arrow or not written:
        raise SignatureError(f"the signature {text!r} has no tensor that is written; write it as {EXAMPLE!r}.")
    differing = [name for name in read.keys() & written.keys() if read[name] != written[name]]
    if differing:
        raise SignatureError(f"the signature {text!r} gives {differing[0]!r} two different shapes; one tensor has one.")
    both = {**read, **written}
    roles = {name: "inout" if name in read and name in written else "in" if name in read else "out" for name in both}
    return Signature(text, tuple((name, sizes, roles[name]) for name, sizes in both.items()))


def _side(text: str, side: str) -> dict[str, tuple[str, ...]]:
    tensors: dict[str, tuple[str, ...]] = {}
    at = 0
    while side[at:].strip():
        match = _TENSOR.match(side, at)
        sizes = tuple(part.strip() for part in match[2].split(",")) if match and match[2].strip() else ()
        if match is None or match[1] in tensors or not all(_SIZE.fullmatch(size) for size in sizes):
            raise SignatureError(f"the signature {text!r} cannot be read at {side[at:].strip()!r}; write it as {EXAMPLE!r}.")
        tensors[match[1]] = sizes
        at = match.end()
    return tensors
