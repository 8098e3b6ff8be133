"""The signature of a hand-written kernel: names of its tensors and of their sizes, "x[M, N], weight[N] -> y[M, N]".

Tensors on the left of the arrow are read, and those on the right are written; a tensor on both sides is both. A size is a
number, or a name, which has one value throughout. "..." stands for any number of dimensions, the same ones throughout; as a
size, it is the number of elements in them.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polytile.errors import HintError, InvalidInput, SignatureError

EXAMPLE = "x[M, N], weight[N] -> y[M, N]"

ANY = "..."
"""Any number of dimensions."""

_TENSOR = re.compile(r"\s*([A-Za-z_]\w*)\s*\[([\w\s,.]*)\]\s*(?:,|$)")
_SIZE = re.compile(r"[A-Za-z_]\w*|\d+|\.\.\.")


@dataclass(frozen=True)
class Signature:
    """`tensors`: (name, its sizes, its role: "in", "out" or "inout") in the order of the arguments."""

    text: str
    tensors: tuple[tuple[str, tuple[str, ...], str], ...]

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.tensors)

    @functools.cached_property
    def size_names(self) -> tuple[str, ...]:
        """The names of sizes, in the order in which they are first met."""
        return tuple(dict.fromkeys(size for _, sizes, _ in self.tensors for size in sizes if not size.isdigit()))

    @property
    def read(self) -> tuple[str, ...]:
        """The names of the tensors that are read."""
        return tuple(name for name, _, role in self.tensors if role != "out")

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the tensors that are written."""
        return tuple(name for name, _, role in self.tensors if role != "in")

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

    def check_taken(self, function: Callable[..., Any], what: str, keywords: Mapping[str, Any]) -> None:
        """Raises SignatureError, naming `function` as `what`, where it cannot be called with the tensors, then the sizes, and
        `keywords`."""
        arguments = (*self.names, *self.size_names)
        and_keywords = f" and the keywords {', '.join(keywords)}" if keywords else ""
        wanted = f"has to be a function of {len(arguments)} arguments, ({', '.join(arguments)}){and_keywords}"
        if not callable(function):
            raise SignatureError(f"{what} {wanted}; it was given {function!r}.")
        try:
            inspect.signature(function).bind(*arguments, **keywords)
        except TypeError as error:
            raise SignatureError(f"{what} {wanted}, and cannot be called so: {error}.") from None
        except ValueError:  # a function in C that does not say what it takes
            return

    def tensors_of(self, kernel: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        """The tensors of a call in order; those that come by name are taken out of `keywords`. Raises InvalidInput, naming
        `kernel`, unless each comes once."""
        names = self.names
        if len(args) == len(names):
            return args
        later = names[len(args) :]
        given = [*names[: len(args)], *(name for name in later if name in keywords)]
        if len(args) > len(names) or len(given) < len(names):
            lacking = [name for name in names if name not in given]
            others = [name for name in keywords if name not in names]
            also = f", besides {', '.join(others)}" if others else ""
            what = f"{', '.join(given)}{also} and lacks {', '.join(lacking)}" if lacking else f"{len(args)}"
            raise InvalidInput(f"kernel {kernel!r} takes {len(names)} tensors, {', '.join(names)}; it was given {what}.")
        return (*args, *(keywords.pop(name) for name in later))

    def sizes(self, kernel: str, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """What `size_names` are in a call. Raises InvalidInput, naming `kernel` and the argument, for tensors that do not
        fit."""
        lengths: dict[str, Any] = {}
        given_by: dict[str, str] = {}
        what: Any
        for (name, sizes, _), tensor in zip(self.tensors, tensors, strict=True):
            shape = tensor.shape if isinstance(tensor, torch.Tensor) else None
            if shape is None or not _fits(sizes, shape):
                what = f"shape {list(shape)}" if shape is not None else f"type {type(tensor).__name__}"
                raise InvalidInput(
                    f"argument {name!r} of kernel {kernel!r} has {what}; it must be a tensor [{', '.join(sizes)}]."
                )
            for size, length in zip(sizes, _apart(sizes, shape), strict=True):
                known: Any = int(size) if size.isdigit() else lengths.setdefault(size, length)
                given_by.setdefault(size, name)
                if known != length:
                    what = list(length) if size == ANY else length
                    said = list(known) if size == ANY else known
                    source = "" if size.isdigit() else f", which argument {given_by[size]!r} says is {said}"
                    raise InvalidInput(
                        f"argument {name!r} of kernel {kernel!r} has shape {list(shape)}: {what} stands where the "
                        f"signature {self.text!r} has {size}{source}."
                    )
        return tuple(math.prod(lengths[name]) if name == ANY else lengths[name] for name in self.size_names)

    @functools.cached_property
    def sizes_by_place(self) -> SizesByPlace | None:
        """What gives the sizes of tensors that fit in a few C calls; None for a signature with "..."."""
        return None if any(ANY in sizes for _, sizes, _ in self.tensors) else SizesByPlace(self)

    def hinted(self, kernel: str, hint: Mapping[str, Any]) -> dict[str, int]:
        """The sizes that a hint says: by name, {"M": 16}, or by the shapes of tensors, {"x": (16, 4096)}. Raises HintError unless
        it says all of them, each alike wherever it does."""
        said: dict[str, int] = {}
        agree = True
        for word, value in hint.items():
            for name, length in self._said_by(word, value).items():
                agree &= type(length) is int and length >= 0 and said.setdefault(name, length) == length
        if not agree or said.keys() != set(self.size_names):
            raise HintError(
                f"a hint of kernel {kernel!r} has to say each of {', '.join(self.size_names)}, by its name or by the shape of a "
                f"tensor; {dict(hint)} does not."
            )
        return said

    def _said_by(self, word: str, value: Any) -> dict[str, Any]:
        """Sizes by name that one item of a hint says; what it says wrong is there as -1."""
        its = next((sizes for name, sizes, _ in self.tensors if name == word), None)
        if its is None:
            return {word: value}
        if not isinstance(value, Sequence) or not _fits(its, value):
            return {word: -1}
        stands = zip(its, _apart(its, tuple(value)), strict=True)
        return {name: math.prod(n) if name == ANY else n for name, n in stands if not name.isdigit() or int(name) != n}

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """A shape for each tensor at these sizes; "..." is one dimension."""
        return {name: tuple(int(n) if n.isdigit() else sizes[n] for n in its) for name, its, _ in self.tensors}


class SizesByPlace:
    """The sizes of a call whose tensors fit, without a loop over their names: all shapes stand in one row behind the signature's
    own numbers, and each entry has to equal the one at the place where its name is met first."""

    def __init__(self, signature: Signature) -> None:
        every = [size for _, sizes, _ in signature.tensors for size in sizes]
        self._ranks = tuple(len(sizes) for _, sizes, _ in signature.tensors)
        numbers = list(dict.fromkeys(size for size in every if size.isdigit()))
        row = [*numbers, *every]
        self._first = _items(row.index(size) for size in row)
        self._sizes = _items(row.index(name) for name in signature.size_names)
        self._numbers = tuple(int(number) for number in numbers)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...] | None:
        """The sizes; None where the tensors do not fit."""
        row: tuple[int, ...] = self._numbers
        for tensor, rank in zip(tensors, self._ranks, strict=True):
            if not isinstance(tensor, torch.Tensor) or len(shape := tensor.shape) != rank:
                return None
            row += shape
        return self._sizes(row) if self._first(row) == row else None


def _items(places: Iterable[int]) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """What takes a tuple's items at these places, in C where there are several."""
    at = tuple(places)
    return operator.itemgetter(*at) if len(at) > 1 else lambda row: tuple(row[place] for place in at)


def _fits(sizes: Sequence[str], shape: Sequence[int]) -> bool:
    """Whether a shape has as many dimensions as these sizes."""
    return len(shape) >= len(sizes) - 1 if ANY in sizes else len(shape) == len(sizes)


def _apart(sizes: Sequence[str], shape: Sequence[int]) -> Sequence[Any]:
    """What stands in a shape for each of these sizes; for "..." a tuple."""
    if ANY not in sizes:
        return shape
    start = sizes.index(ANY)
    end = len(shape) - (len(sizes) - 1 - start)
    return (*shape[:start], tuple(shape[start:end]), *shape[end:])


def parsed(text: str) -> Signature:
    """Parses a signature. Raises SignatureError, with an example, if `text` is not one."""
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
        if match is None or match[1] in tensors or sizes.count(ANY) > 1 or not all(map(_SIZE.fullmatch, sizes)):
            raise SignatureError(f"the signature {text!r} cannot be read at {side[at:].strip()!r}; write it as {EXAMPLE!r}.")
        tensors[match[1]] = sizes
        at = match.end()
    return tensors
