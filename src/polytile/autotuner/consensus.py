"""The reference result in the absence of one: what most configs of a kernel compute."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from polytile.tuning.clones import Clones, poison_of, written_positions
from polytile.tuning.distance import compare
from polytile.tuning.gate import OfCandidates
from polytile.tuning.tolerance import tolerance

log = logging.getLogger("polytile.dispatch")


class Consensus(OfCandidates):
    """A reference (dispatch/spec.py) by majority: runs configs on copies of the arguments until no other result can have more
    votes, and writes that result. `launches` returns (name, launch) of each config that may run."""

    def __init__(
        self, kernel: str, launches: Callable[[], Sequence[tuple[str, Callable[..., None]]]], roles: Sequence[str], terms: int,
        left_out: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.kernel, self.launches, self.roles, self.terms = kernel, launches, tuple(roles), terms
        self.left_out = left_out

    def without(self, names: Collection[str]) -> Consensus:
        return Consensus(self.kernel, self.launches, self.roles, self.terms, {*self.left_out, *names})

    def __call__(self, *args: Any) -> None:
        """Write the majority result. If no config succeeds, raises the error of the first one."""
        groups: list[tuple[list[torch.Tensor], list[str]]] = []
        launches = [(name, launch) for name, launch in self.launches() if name not in self.left_out]
        failed: Exception | None = None
        written = written_positions(args, self.roles)
        for number, (name, launch) in enumerate(launches):
            try:
                results = self._results(launch, args, written)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                failed = failed or error
                continue
            same = next((names for known, names in groups if self._agree(results, known)), None)
            if same is not None:
                same.append(name)
            else:
                groups.append((results, [name]))
            first, second = [*sorted((len(names) for _, names in groups), reverse=True), 0][:2]
            if first > second + len(launches) - number - 1:
                break
        if not groups:
            raise failed or RuntimeError(f"kernel {self.kernel!r} has no config to run")
        results, names = max(groups, key=lambda group: len(group[1]))
        if sum(len(others) == len(names) for _, others in groups) > 1:
            log.warning(
                "Configs of kernel %r differ in their results, and none has a majority: %s. That of %s is taken for right; "
                "reference= says what is.", self.kernel, "; ".join(", ".join(names) for _, names in groups), names[0],
            )  # fmt: skip
        for position, result in zip(written, results, strict=True):
            args[position].copy_(result)

    def _results(self, launch: Callable[..., None], args: Sequence[Any], written: Sequence[int]) -> list[torch.Tensor]:
        clones = Clones(args, self.roles)
        try:
            clones.restore()
            clones.poison()
            launch(*clones.args)
            return [clones.args[position].clone() for position in written]
        finally:
            clones.close()

    def _agree(self, got: Sequence[torch.Tensor], known: Sequence[torch.Tensor]) -> bool:
        for mine, other in zip(got, known, strict=True):
            error, why = compare(mine, other)
            if why or error > 2 * tolerance(mine.dtype, self.terms):
                return False
        return True


class Given:
    """A reference by a user's function, called with those of the kernel's arguments that its parameters name. Outputs that the
    kernel does not read and the function leaves unchanged are not compared."""

    def __init__(
        self, function: Callable[..., None], parameters: Sequence[str] | None, roles: Sequence[str],
        values: Callable[[Sequence[Any]], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        self.function, self.parameters, self.roles, self.values = function, parameters, tuple(roles), values

    def __call__(self, *args: Any) -> None:
        for role, tensor in zip(self.roles, args, strict=False):
            if role == "out":
                tensor.fill_(unwritten(tensor.dtype))
        values = self.values(args)
        wanted = values if self.parameters is None else {name: values[name] for name in self.parameters if name in values}
        self.function(**wanted)


def unwritten(dtype: torch.dtype) -> float | int | bool:
    """The value with which an output is filled before a candidate runs (tuning/clones.py)."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    if dtype == torch.bool:
        return bool(poison_of(dtype))
    return int.from_bytes(bytes([poison_of(dtype)]) * dtype.itemsize, "little", signed=dtype.is_signed)
