"""The form of a generated Triton kernel that is written for one architecture of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from polytile.candidates.entries import NativeEntry, PythonEntry
from polytile.candidates.handles import DeviceHandle
from polytile.candidates.triton import Specialised
from polytile.errors import CandidateRejected, LoweringError
from polytile.runtime.cuda import cubins
from polytile.runtime.cuda.device import DeviceFacts


class OneArchitecture(Specialised):
    """The form of a candidate that is written for one architecture, and not for all facts: it is valid at no size of a regime
    for whose facts the generator raises LoweringError."""

    @cached_property
    def refusal(self) -> str:
        """Why it takes no part in regimes with these facts; "" where it does."""
        try:
            _ = self.kernel
        except LoweringError as error:
            return f"{self.name} takes no part: {error}"
        return ""

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return not self.refusal and super().valid(sizes)

    def prepare(self) -> None:
        if not self.refusal:
            super().prepare()

    def prepare_for(self, device: DeviceFacts) -> tuple[cubins.Promise, ...]:
        return ()

    def failed(self) -> bool:
        return bool(self.refusal) or super().failed()

    def entry(self) -> NativeEntry | PythonEntry:
        self._check()
        return super().entry()

    def handle(self) -> DeviceHandle | None:
        self._check()
        return super().handle()

    def _check(self) -> None:
        if self.refusal:
            raise CandidateRejected(self.refusal)
