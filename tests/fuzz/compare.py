"""A compiled program against eager: everything that its caller can see after a call."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters as dynamo_counters
from torch.overrides import TorchFunctionMode

import polytile
from polytile.dispatch.registry import alive
from tests.conformance.judge import steps
from tests.fuzz.programs import Fuzzed, mode

ROUNDINGS = 32
"""Roundings of the largest value anywhere in the program that a rounded value may be from float64."""
SLACK = 4.0
"""And so many times as far as eager is."""
MOST_ELEMENTS = 300_000
LOOSE = {2: 0.15, 4: 2e-3, 8: 1e-6}
"""Share of the largest value by which rounded values may differ where no float64 result compares, as random numbers of another
dtype do not, by the bytes of the shortest float in the program."""


FORCED = (
    "", "interpreted", "split*,splitk*,looped t1", "interpreted", "*t2", "interpreted", "short*,small*,stream*", "aten",
)  # fmt: skip
"""Candidates that run, by the seed: the predicted ones, or those of a kind. Interpreted ones need no C++ compiler."""


LIMITS = ("as_strided of a temporary that is a part of a larger one",)
"""What polytile says of graphs that it leaves to ATen: here memory between elements is read, which it does not copy."""

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass
class Seen:
    """What a call did, in order: results, then inputs, then gradients of the inputs."""

    error: str
    results: list[Any]
    inputs: list[Tensor]
    gradients: list[Tensor | None]
    random: Tensor

    @property
    def visible(self) -> list[Tensor]:
        return [r for r in self.results if isinstance(r, Tensor)] + self.inputs


class _Bounded(TorchFunctionMode):
    """Raises MemoryError where a tensor has more than MOST_ELEMENTS."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() > MOST_ELEMENTS:
            raise MemoryError("a tensor is larger than programs are meant to have")
        return result


def eagers(program: Fuzzed, sizes: tuple[int, int], wide: bool = False) -> Seen:
    """What eager does; at sizes that take too much memory an error."""
    return observe(program, program.function(wide), sizes, wide, _Bounded())


def observe(
    program: Fuzzed, call: Callable[..., Any], sizes: tuple[int, int], wide: bool = False, limit: Any = None
) -> Seen:
    """Calls `call` with the program's inputs and looks at what is left."""
    limit = limit or contextlib.nullcontext()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wide else default)
    given = program.tensors(sizes, wide)
    # An input that needs a gradient is no leaf, so that it can be written to; its own gradient is asked of the leaf.
    torch.manual_seed(program.seed)
    seen = Seen("", [], given, [], torch.empty(0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with mode(program.mode), limit:
                seen.results = list(call(*given))
            seen.random = torch.get_rng_state()
            seen.gradients = _gradients(seen, given)
    except Exception as error:
        seen.error = f"{type(error).__name__}: {error}"
    finally:
        torch.set_default_dtype(default)
    return seen


def _gradients(seen: Seen, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    ends = [t for t in seen.results if isinstance(t, Tensor) and t.requires_grad and t.grad_fn is not None]
    wanted = [leaf for leaf in leaves if leaf.requires_grad and leaf.is_leaf]
    if not ends or not wanted:
        return []
    generator = torch.Generator().manual_seed(3)
    given = [torch.randint(-2, 3, tuple(end.shape), generator=generator).to(end.dtype) for end in ends]
    return list(torch.autograd.grad(ends, wanted, given, allow_unused=True))


@dataclass(frozen=True)
class Difference:
    """Where a call differs from another one, and in what. Two of one place and another reference can be compared by it."""

    place: tuple[str, ...]
    said: str

    def __str__(self) -> str:
        return f"{self.place[0]}: {self.said}" if self.said else self.place[0]


def differences(program: Fuzzed, mine: Seen, eager: Seen, wide: Seen) -> list[Difference]:
    """All in which a call differs from eager's, but for what writes show. Tensors of another shape or dtype are not compared any
    further."""
    if len(mine.results) != len(eager.results):
        return [Difference((f"{len(mine.results)} results and not {len(eager.results)}",), "")]
    inputs = [f"x{k}" for k in range(len(eager.inputs))]
    tensors = [k for k, r in enumerate(eager.results) if isinstance(r, Tensor)]
    exact = [name in program.exact for name in (*(program.results[k] for k in tensors), *inputs)]
    names = [f"result {k}" for k in tensors] + [f"input {k}" for k in range(len(inputs))]
    if len(mine.visible) != len(names):
        return [Difference(("results that are tensors",), "")]
    found = list(_kinds(names, mine.visible, eager.visible))
    if not torch.equal(mine.random, eager.random):
        found.append(Difference(("the state of the generator",), ""))
    found += _aliases(names, mine.visible, eager.visible)
    comparable = [(m.dtype, m.shape) == (e.dtype, e.shape) for m, e in zip(mine.visible, eager.visible, strict=True)]
    size, least = max([1.0, *(_largest(t) for t in eager.visible)]), program.shortest
    rights: Sequence[Any] = wide.visible if not wide.error and len(wide.visible) == len(names) else [None] * len(names)
    every = zip(names, mine.visible, eager.visible, rights, exact, comparable, strict=True)
    for name, m, e, w, equal, alike in every:
        if alike and (wrong := _values(m.detach(), e.detach(), w, size, equal, least)):
            found.append(Difference((name, "values"), wrong))
    return [*found, *_slopes(mine, eager, wide, size, least)]


def _slopes(mine: Seen, eager: Seen, wide: Seen, size: float, least: int) -> Iterator[Difference]:
    if len(mine.gradients) != len(eager.gradients):
        yield Difference((f"{len(mine.gradients)} gradients and not {len(eager.gradients)}",), "")
        return
    rights: Sequence[Any] = wide.gradients if len(wide.gradients) == len(eager.gradients) else [None] * len(eager.gradients)
    size = max([size, *(_largest(g) for g in eager.gradients if g is not None)])
    for k, (m, e, w) in enumerate(zip(mine.gradients, eager.gradients, rights, strict=True)):
        if m is None or e is None:
            wrong = f"{m} and not {e}" if (m is None) != (e is None) else ""
        elif (m.shape, m.dtype) != (e.shape, e.dtype):
            wrong = f"{m.dtype} {tuple(m.shape)} and not {e.dtype} {tuple(e.shape)}"
        else:
            wrong = _values(m.detach(), e.detach(), w, size, False, least)
        if wrong:
            yield Difference((f"gradient {k}",), wrong)


def _largest(tensor: Tensor) -> float:
    tensor = tensor.detach()
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 1.0
    finite = tensor[tensor.isfinite()].abs().double()
    return float(finite.max()) if finite.numel() else 1.0


def _kinds(names: Sequence[str], mine: Sequence[Tensor], eager: Sequence[Tensor]) -> Iterator[Difference]:
    for name, m, e in zip(names, mine, eager, strict=True):
        for what in ("dtype", "shape", "requires_grad"):
            if getattr(m, what) != getattr(e, what):
                yield Difference((name, what), f"{what} {getattr(m, what)} and not {getattr(e, what)}")
        if m.shape == e.shape and steps(m) != steps(e):
            yield Difference((name, "strides"), f"strides {m.stride()} and not {e.stride()} for shape {tuple(e.shape)}")
        if m.is_inference() != e.is_inference():
            yield Difference((name, "is_inference"), f"is_inference {m.is_inference()}")


def _aliases(names: Sequence[str], mine: Sequence[Tensor], eager: Sequence[Tensor]) -> Iterator[Difference]:
    """Which tensors share memory, and how far apart in it they begin. Results without common elements may lie apart."""
    for k, name in enumerate(names):
        for j in range(k):
            if not eager[k].numel() or not eager[j].numel():
                continue
            pair = f"{names[j]} and {name}"
            shared = [t[k].untyped_storage().data_ptr() == t[j].untyped_storage().data_ptr() for t in (mine, eager)]
            if shared[0] != shared[1] and (shared[0] or name.startswith("input")):
                yield Difference((f"{pair} {'share' if shared[0] else 'do not share'} memory",), "")
            apart = [t[k].data_ptr() - t[j].data_ptr() for t in (mine, eager)]
            if all(shared) and apart[0] != apart[1]:
                yield Difference((pair,), f"begin {apart[0]} bytes apart and not {apart[1]}")


def _values(mine: Tensor, eager: Tensor, wide: Any, size: float, equal: bool, least: int) -> str:
    if torch.equal(mine, eager) or (torch.equal(mine.isnan(), eager.isnan()) and _zeroed(mine).equal(_zeroed(eager))):
        return ""
    said = f"{mine.flatten()[:8].tolist()}… and not {eager.flatten()[:8].tolist()}…"
    if not (eager.is_floating_point() or eager.is_complex()):
        return said
    exact = torch.complex128 if eager.is_complex() else torch.float64
    m, e = mine.to(exact), eager.to(exact)
    comparable = wide is not None and wide.shape == e.shape and wide.dtype == exact
    unit = torch.finfo(eager.dtype).eps
    loose = LOOSE[min(torch.finfo(eager.dtype).bits // 8, least)]
    if comparable:
        w = wide.detach()
        if equal and torch.equal(e.nan_to_num(7.5), w.nan_to_num(7.5)):
            return f"{said} (exact in eager)"
        off, theirs, allowed = _off(m, w), _off(e, w), ROUNDINGS * unit * size
        if off <= allowed or (off <= allowed + SLACK * theirs and theirs <= loose * size):
            return ""
    if _off(m, e) <= loose * size:
        return ""
    return f"{said}, {_off(m, e):.2g} apart" + (f", {off:.2g} from float64" if comparable else "")


def _zeroed(tensor: Tensor) -> Tensor:
    return torch.where(tensor.isnan(), torch.zeros((), dtype=tensor.dtype), tensor)


def _off(a: Tensor, b: Tensor) -> float:
    """Largest distance where both are finite; ∞ where the others differ."""
    finite = a.isfinite() & b.isfinite()
    if not torch.equal(a[~finite].nan_to_num(0.5), b[~finite].nan_to_num(0.5)):
        return float("inf")
    return float((a[finite] - b[finite]).abs().max()) if bool(finite.any()) else 0.0


@torch.no_grad()
def changes(seen: Seen) -> dict[tuple[int, int], Tensor]:
    """Writes to each visible tensor in turn: which elements of each change by it."""
    every = range(len(seen.visible))
    return {(k, other): changed for k in every for other, changed in enumerate(_changed(k, seen.visible))}


def _changed(k: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    before = [t.detach().clone() for t in tensors]
    written = tensors[k].detach()
    with torch.inference_mode(written.is_inference()):
        # one whose elements share memory cannot be written to at once
        if 0 not in steps(written) and written.dtype == torch.bool:
            written.logical_not_()
        elif 0 not in steps(written):
            written.copy_(torch.full((), NEW.get(written.dtype, float("nan"))))
    pairs = zip(before, (t.detach() for t in tensors), strict=True)
    return [a != b if a.dtype in NEW else b.isnan() & ~a.isnan() for a, b in pairs]


NEW: dict[torch.dtype, int] = dict.fromkeys(INTEGERS, 77) | {torch.bool: 1}
"""What is written into tensors of a dtype; NaN into others."""


def compiled(program: Fuzzed, backend: Any = "polytile", **options: Any) -> Callable[..., Any]:
    given = {"options": options} if options else {}
    made: Callable[..., Any] = torch.compile(program.function(), backend=backend, dynamic=True, fullgraph=True, **given)
    return made


def wrong_with(program: Fuzzed, backend: Any = "polytile") -> str:
    """The first difference between eager and the compiled program, at once and later; empty if there is none. Where `aot_eager`
    differs from eager, PyTorch is the cause, and its values are as right."""
    mine, waits = backend == "polytile", backend == "polytile" and program.seed % 2 == 0
    options: dict[str, Any] = {}
    if mine:
        force = FORCED[program.seed // 2 % len(FORCED)]
        options = {"stall": "never" if waits else "compile", "tune": "off", "isolation": "never", "force": force}
    torch._dynamo.reset()
    made = compiled(program, backend, **options)
    own = 0

    def call(*given: Any) -> Any:
        nonlocal own
        before = graphs()
        try:
            return made(*given)
        finally:
            own += graphs() - before

    for k in range(len(program.sizes)):
        if wrong := _wrong_at(program, call, k, waits):
            return f"at (n, m) = {program.sizes[k]}{wrong}"
    if mine:
        for kernel in alive():
            if kernel.faulty:
                return f": a candidate is wrong or not compiled: {kernel.spec.name} {kernel.faulty}"
        if own > 1 and own > (theirs := _graphs_of_aot(program)):
            return f": {own} graphs and not {theirs}"
    return ""


def _wrong_at(program: Fuzzed, call: Callable[..., Any], k: int, waits: bool) -> str:
    """What is wrong with call number `k`."""
    sizes = program.sizes[k]
    eager, wide = eagers(program, sizes), eagers(program, sizes, wide=True)
    if eager.error:
        return ""  # what raises in eager may or may not raise when compiled
    for tier in (", at once", ", when compiled") if waits else ("",):
        if tier == ", when compiled":
            polytile.wait(timeout=120)
        if wrong := _wrong_now(program, observe(program, call, sizes), k, eager, wide):
            return f"{tier}: {wrong}"
        eager = eagers(program, sizes)  # comparing has written into its results
    return ""


def _wrong_now(program: Fuzzed, mine: Seen, k: int, eager: Seen, wide: Seen) -> str:
    if any(limit in mine.error for limit in LIMITS):
        return ""
    if mine.error or (wrong := differences(program, mine, eager, wide)):
        first, second = (eagers(program, program.sizes[k]) for _ in range(2))
        if differences(program, second, first, wide):
            return ""  # some of eager's kernels read memory that nobody wrote
        theirs = _of_aot(program, k)
        if mine.error or theirs.error:
            return "" if is_same_error(theirs.error, mine.error) else mine.error or str(wrong[0])
        left = {one.place for one in differences(program, mine, theirs, wide)}
        if wrong := [one for one in wrong if one.place in left]:
            return str(wrong[0])
    if any(not m.isnan().equal(e.isnan()) for m, e in zip(mine.visible, eager.visible, strict=True)):
        return ""  # rounded values that are as right as eager's
    own, right = changes(mine), changes(eager)
    if places := [place for place in own if not own[place].equal(right[place])]:
        right = changes(_of_aot(program, k))
        places = [place for place in places if not own[place].equal(right[place])]
    return next((f"what a write to tensor {k} changes of tensor {other}" for k, other in places), "")


def is_same_error(peer: str, mine: str) -> bool:
    """Whether two backends raise errors that begin alike."""
    raised = r"BackendCompilerFailed: backend='\w+' raised:\s*"
    texts = [re.match(r"\w+(Error|Unsupported)\b:.{,20}|Unsupported", re.sub(raised, "", text)) for text in (peer, mine)]
    return None not in texts and texts[0][0] == texts[1][0]  # type: ignore[index]


def _of_aot(program: Fuzzed, last: int) -> Seen:
    """What `aot_eager` does in call number `last`, after the calls before it."""
    call = compiled(program, "aot_eager")
    for sizes in program.sizes[: last + 1]:
        seen = observe(program, call, sizes)
    return seen


def graphs() -> int:
    """Graphs that Dynamo has traced."""
    return int(dynamo_counters["stats"]["unique_graphs"])


def _graphs_of_aot(program: Fuzzed) -> int:
    torch._dynamo.reset()  # Dynamo has learned which sizes change
    call, before = compiled(program, "aot_eager"), graphs()
    for sizes in program.sizes:
        if not eagers(program, sizes).error:
            observe(program, call, sizes)
    return graphs() - before
