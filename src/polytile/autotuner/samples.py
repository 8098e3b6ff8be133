"""Arguments for measuring an autotuned kernel outside its calls: made by `make_args`, or copied from earlier calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polytile import locks
from polytile import options as settings
from polytile.autotuner.call import Call, this_thread
from polytile.errors import HintError
from polytile.problem import sizes_text

if TYPE_CHECKING:
    from polytile.autotuner.tuner import Autotuner

MOST_SAMPLES = 8
"""Maximum number of calls whose arguments are kept."""


class Samples:
    """Launches of one autotuned kernel with arguments of their own, by the kind of call and its sizes."""

    def __init__(self, tuner: Autotuner) -> None:
        self.tuner = tuner
        self._calls: dict[tuple[Any, ...], Call] = {}
        self._lock = locks.lock()

    def arguments_at(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The kernel's arguments by name, and its "grid", as `make_args` makes them for these sizes.

        Raises
        ------
        HintError
            If there is no `make_args`, or it does not return them.
        """
        make, name = self.tuner.extras.make_args, self.tuner.name
        made = None if make is None else make(**sizes)
        if not isinstance(made, Mapping) or "grid" not in made:
            said = "there is none" if make is None else f"it returns {sorted(made) if isinstance(made, Mapping) else made!r}"
            raise HintError(
                f"a launch of kernel {name!r} at {sizes_text(sizes.items())} needs make_args= to return the kernel's arguments "
                f'by name, and its "grid"; {said}.'
            )
        return {**{name: size for name, size in sizes.items() if name in self.tuner.arg_names}, **made}

    @property
    def can_make(self) -> bool:
        """Whether there may be arguments without a call: from `make_args`, or kept from calls with stall="never"."""
        stall = {**settings.overridden(), **self.tuner.options}.get("stall", "tune")
        return self.tuner.extras.make_args is not None or stall == "never"

    def flat_at(self, like: Call, sizes: Mapping[str, int]) -> tuple[Any, ...]:
        """Flat arguments at these sizes, for a launch that is otherwise like `like`. Raises HintError if there are none."""
        ints = tuple(sizes.get(name) for name in like.sizes)
        sample = self._calls.get((like.kind, ints))
        if sample is None and self.tuner.extras.make_args is not None:
            sample = self._made_up(like, sizes)
            if sample.kind != like.kind:
                raise HintError(
                    f"make_args= of kernel {self.tuner.name!r} makes arguments of other types, on another device, or with other "
                    f"key values than the kernel is called with: {sample.kind} in place of {like.kind}."
                )
            self._calls[like.kind, ints] = sample
        if sample is None:
            raise HintError(f"kernel {self.tuner.name!r} has no arguments for {dict(sizes)}; make_args= makes some.")
        if this_thread.launch.call is None:
            this_thread.launch.call = sample
        return sample.flat

    def _made_up(self, like: Call, sizes: Mapping[str, int]) -> Call:
        """A launch with the arguments that `make_args` makes for these sizes, and otherwise like `like`."""
        assert self.tuner.extras.make_args is not None
        others = {name: value for name, value in like.given().items() if name not in like.tensors}
        launch = {name: value for name, value in like.kwargs.items() if name not in self.tuner.arg_names}
        made = {**others, **launch, **sizes, **self.tuner.extras.make_args(**sizes)}
        return Call(self.tuner.arg_names, self.tuner.keys, (), made, self.tuner.effects.constants)

    def hints_for(self, call: Call) -> list[Mapping[str, int]]:
        """The hints with the same constants as this call. Others are tuned at the first call with theirs."""
        return [hint for hint in self.tuner.extras.hints if self._made_up(call, hint).kind[-1] == call.kind[-1]]

    def keep(self, call: Call) -> None:
        """Keep a copy of a call's arguments; forgets the oldest beyond MOST_SAMPLES."""
        with self._lock:
            while len(self._calls) >= MOST_SAMPLES:
                self._calls.pop(next(iter(self._calls)))
            self._calls[call.kind, tuple(call.flat[len(call.tensors) :])] = call.copied()

    def call_of(self, call: Call, flat: Sequence[Any]) -> Call:
        """The launch to which flat arguments belong: `call` itself, or a sample at their sizes."""
        ints = tuple(flat[len(call.tensors) :])
        if ints == tuple(call.flat[len(call.tensors) :]):
            return call
        return self._calls.get((call.kind, ints), call)
