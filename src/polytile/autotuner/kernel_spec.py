"""The KernelSpec of an autotuned kernel: its arguments, sizes and reference."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from polytile.autotuner.call import Call, this_thread
from polytile.autotuner.candidate import Launch
from polytile.autotuner.consensus import Consensus, Given
from polytile.candidates.handles import importable_name
from polytile.dispatch.spec import ArgInfo, KernelSpec
from polytile.problem import digest
from polytile.runtime import regime

if TYPE_CHECKING:
    from polytile.autotuner.tuner import Autotuner

TERMS = 4096
"""Default number of terms that an output element sums. Within its tolerance, configs that sum in different orders agree."""


def spec_of(tuner: Autotuner, call: Call) -> KernelSpec:
    """The specification of the MultiKernel for calls of this kind."""
    hooked = any(map(tuner.has_hooks, tuner.configs))
    changed = {*tuner.reset_to_zero, *tuner.restore_value}
    roles = ["inout" if hooked or name in changed else tuner.effects.role(name) for name in call.tensors]
    exact = tuner.extras.exact
    codes = [regime.EXACT if exact is True or (exact and name in exact) else regime.BUCKET for name in call.sizes]
    others = call.kind[-1]
    return KernelSpec(
        name=tuner.name,
        family="user",
        kernel=digest(f"{importable_name(tuner.base_fn)} {call.tensors} {others}"),
        args=tuple(ArgInfo(n, t.dtype, role) for n, t, role in zip(call.tensors, call.flat, roles, strict=False)),
        size_names=call.sizes,
        size_codes=tuple(codes),
        reduction=tuple(tuner.extras.reduction) or (TERMS,),
        target=torch.device(call.device.type) if call.device.type != "cuda" else call.device,
        reference=_reference(tuner, roles),
        wide=tuner.extras.reference is not None,
        make_args=functools.partial(tuner.samples.flat_at, call) if tuner.samples.can_make else None,
    ).on_its_gpu()


def _reference(tuner: Autotuner, roles: Sequence[str]) -> Callable[..., None]:
    """The reference: the user's function, or the consensus of the configs."""
    function = tuner.extras.reference
    if function is None:
        return Consensus(tuner.name, functools.partial(_launches, tuner), roles, TERMS)
    parameters = inspect.signature(function).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())

    def values(flat: Sequence[Any]) -> Mapping[str, Any]:
        args, kwargs = tuner.call_of(flat).with_flat(flat)
        return {**dict(zip(tuner.arg_names, args, strict=False)), **{n: kwargs[n] for n in tuner.arg_names if n in kwargs}}

    return Given(function, None if takes_all else tuple(parameters), roles, values)


def _launches(tuner: Autotuner) -> Sequence[tuple[str, Callable[..., None]]]:
    """The configs that may run at the sizes of this thread's launch."""
    call = this_thread.launch.call
    assert call is not None
    sizes = dict(zip(call.sizes, call.flat[len(call.tensors) :], strict=True))
    allowed = tuner.allowed(sizes)
    return [(name, Launch(tuner, config)) for name, config in tuner.named.items() if name in allowed]
