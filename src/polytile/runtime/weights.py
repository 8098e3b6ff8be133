"""Packed copies of weights, made once and used until the weight changes.

A Site is a place in a program that prefers to read a packed copy of a weight, such as its panels. Its `find` takes the
weight and returns the copy, or None if there is none. A copy belongs to the weight's storage and is freed with it.
Sites that need the same copy of the same weight share it.

Guarantees: no copy is used after a write that PyTorch counts (`Tensor._version`: operators on the weight or its views,
`copy_`, `load_state_dict`, compiled programs, optimizers), after a step of any torch.optim.Optimizer that holds the
weight (fused optimizers write without counting), or after the weight's memory was replaced (`.data =`, `set_`, a new
Parameter).

PyTorch does not count writes through `.data` or by C code that was given the address. If such a write changes the whole
weight, a sample of the weight's bytes detects it, and the weight is no longer trusted. A write that misses the sampled
bytes goes unnoticed; call `forget_weights` after it.

A weight is never packed if its memory can be written by others (it is shared with another process, borrowed from NumPy
or a file, or held by several tensors), or if it is an inference tensor, which counts no writes.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from polytile import locks
from polytile.counters import counters
from polytile.runtime import background, native
from polytile.runtime.background import Disturbance

log = logging.getLogger("polytile")

LIVED = 8
"""A copy must have served this many calls by the time its weight changes; otherwise the next copy waits twice as long."""

MOST_PATIENCE = 1 << 12
"""Number of unchanged calls after which a copy is made in any case."""

BEING_PACKED = "it is being packed"
"""Reason why there is no copy yet while the background thread packs the weight."""

ASKED_AGAIN = 64
"""Number of calls after which a site asks again for a copy that is being made for another site."""

NEVER = 1 << 40
"""Number of calls after which a weight that cannot be packed is reconsidered. In practice a change of the weight comes
first."""


@dataclass(frozen=True)
class Recipe:
    """How to copy a weight: `make` packs the view with these sizes, strides and offset (in elements) into `bytes`
    bytes. Recipes of the same `kind` and view give equal copies."""

    kind: Hashable
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    bytes: int
    make: Callable[[torch.Tensor], torch.Tensor] = field(compare=False)


@dataclass
class Copy:
    """A copy, the version and a byte sample of the weight it was made from, and the sites that use it."""

    tensor: torch.Tensor
    version: int
    sample: int
    sites: weakref.WeakSet[Site] = field(default_factory=weakref.WeakSet)


@dataclass
class Record:
    """State of one weight and recipe: the copy, the version last seen, the number of calls that copies served, and the
    wait for the next copy: `pause` unchanged calls (None: no wait is due), or `patience` calls after a change."""

    pause: int | None
    copy: Copy | None = None
    packing: bool = False
    """Whether the background thread is making a copy."""
    seen: int | None = None
    hits: int = 0
    patience: int = 0

    def lapse(self) -> None:
        """Drops the copy because the weight has changed. The less the copy was used, the longer the next one waits."""
        self.release()
        self.patience = 0 if self.hits >= LIVED else min(max(1, 2 * self.patience), MOST_PATIENCE)
        self.pause, self.hits = self.patience or None, 0

    def release(self) -> None:
        """Releases the copy at every site that uses it."""
        for site in list(self.copy.sites) if self.copy is not None else ():
            site._leave()
        self.copy = None


@dataclass
class Storage:
    """The records of one weight's memory, by recipe and by address of the weight's first element."""

    guard: StorageWeakRef
    records: dict[tuple[Recipe, int], Record] = field(default_factory=dict)
    trusted: bool = True
    """False once a write that PyTorch did not count was detected."""

    @property
    def packing(self) -> bool:
        """Whether the background thread is making any copy of it."""
        return any(record.packing for record in self.records.values())


class Site:
    """A place in a program that uses copies made by one recipe.

    `eager` expects weights to stay unchanged and makes a copy at the first call; otherwise the next unchanged call
    makes it. With `waits` the call waits for the copy; otherwise the background thread makes it while calls go on
    without. The copies of all sites together take at most `limit` bytes.
    """

    def __init__(self, recipe: Recipe, limit: int, eager: bool, waits: bool = True) -> None:
        self.recipe, self.limit, self.eager, self.waits = recipe, limit, eager, waits
        module = native.module()
        watched = module is not None and module.weighs()
        self._keeper: Any = module.Keeper(self._look) if watched else None
        self.find: Callable[[torch.Tensor], torch.Tensor | None] = self._keeper or _without_copy
        self.made = 0
        """Number of copies made for this site."""
        self.reason = "not called yet" if watched else "packing needs the C launcher, which reads storages and versions"
        """Why there is no copy; "" if there is one."""
        self._record: Record | None = None
        """Record of the weight that the keeper knows."""

    @property
    def bytes(self) -> int:
        """Bytes of the copy that the last call used; 0 if there was none or it has been dropped."""
        return self.recipe.bytes if self._keeper is not None and self._keeper.copy is not None else 0

    def _look(self, weight: torch.Tensor) -> torch.Tensor | None:
        """Serves a call that the keeper cannot answer: the weight is new, has changed, or has been watched for long enough."""
        self.reason = "" if type(weight) in _TYPES else f"it is a {type(weight).__name__}"
        if self.reason:
            return None
        with _lock, torch.no_grad(), torch._C.DisableTorchFunction():
            self._leave()
            if weight.is_inference():
                self.reason = "inference tensors do not count writes"
                return None
            storage, version = weight.untyped_storage(), weight._version
            known = _known(storage)
            record = known.records.setdefault((self.recipe, weight.data_ptr()), Record(None if self.eager else 0))
            if known.packing:  # by another view of the same memory
                self.reason, wait = BEING_PACKED, ASKED_AGAIN
            else:
                self.reason = _untrusted(weight, storage)
                wait = NEVER if self.reason else self._found(weight, version, known, record)
            self._keeper.watch(weight, version, known.guard, wait, record.patience)
            record.seen = version
            if record.copy is None or self.reason:
                return None
            self._record = record
            record.copy.sites.add(self)
            self._keeper.hold(record.copy.tensor, _bytes_of(weight), record.copy.sample)
            return record.copy.tensor

    def _found(self, weight: torch.Tensor, version: int, known: Storage, record: Record) -> int:
        """Ensures that the record has a copy of the weight's current value (returns 0), or sets the reason and returns
        how many calls to wait for one."""
        sample = native.module().sample(weight.data_ptr(), _bytes_of(weight))
        old = record.copy
        if old is not None and (old.version, old.sample) != (version, sample):
            if old.version == version:
                _distrust(known, weight)
            record.lapse()
        elif old is None and record.seen not in (None, version):
            record.pause = record.patience
        if not known.trusted:
            self.reason = "something writes to it past PyTorch's count of writes"
            return NEVER
        if record.copy is not None:
            return 0
        pause, record.pause = record.pause, None
        if pause is not None:
            self.reason = "it changes, or has not stayed unchanged for long enough"
            return pause
        if packed_bytes() + self.recipe.bytes > self.limit:
            self.reason = f"the option packed_weights_mib ({self.limit >> 20}) leaves no room for it"
            return NEVER
        if not self.waits and not background.is_here():
            self.reason, record.packing = BEING_PACKED, True
            background.submit(_Packing(self, weight, version, sample, known, record))
            return ASKED_AGAIN
        return self._keep(record, self._packed(weight, version, sample))

    def _packed(self, weight: torch.Tensor, version: int, sample: int) -> Copy | None:
        """A copy of the weight; None if there is not enough memory."""
        view = weight.as_strided(self.recipe.sizes, self.recipe.strides, weight.storage_offset() + self.recipe.offset)
        try:
            return Copy(self.recipe.make(view), version, sample)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
            return None

    def _keep(self, record: Record, copy: Copy | None) -> int:
        """Stores the copy in the record; returns how many calls to wait for one."""
        if copy is None:
            self.reason = "there was no memory for it"
            return NEVER
        record.copy = copy
        self.made += 1
        counters.add("weights_packed")
        _watch_optimizers()
        return 0

    def take(self, weight: torch.Tensor, storage: Storage, record: Record, copy: Copy | None) -> None:
        """Accepts a copy made in the background. The next call finds it, unless the weight has changed meanwhile."""
        record.packing = False
        wait, sample = 0, native.module().sample(weight.data_ptr(), _bytes_of(weight))
        if copy is None or (weight._version, sample) == (copy.version, copy.sample):
            wait = self._keep(record, copy)
        self._keeper.watch(weight, weight._version, storage.guard, wait, record.patience)

    def _leave(self) -> None:
        """Forgets the weight that the keeper knows, and adds the keeper's hits to its record."""
        if self._record is not None:
            self._record.hits += self._keeper.hits
            if self._record.copy is not None:
                self._record.copy.sites.discard(self)
        self._record = None
        self._keeper.release()


@dataclass(frozen=True, eq=False)
class _Packing:
    """The job of making a copy for a site. A write to the weight meanwhile changes its version or its bytes."""

    site: Site
    weight: torch.Tensor
    version: int
    sample: int
    storage: Storage
    record: Record

    disturbs = Disturbance.NONE

    def urgency(self) -> tuple[float, ...]:
        return (3.0,)

    def run(self) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            try:
                copy = self.site._packed(self.weight, self.version, self.sample)
            except BaseException:
                self.record.packing = False
                raise
            with _lock:
                self.site.take(self.weight, self.storage, self.record, copy)


_TYPES = (torch.Tensor, torch.nn.Parameter)
_lock = locks.rlock()
_storages: dict[int, Storage] = {}
"""By address of the storage. The address is not reused while its entry holds a weak reference to the storage."""
_hook: list[Any] = []


def _without_copy(weight: torch.Tensor) -> None:
    """The `find` of sites that cannot hold copies."""


def packed_bytes() -> int:
    """Bytes of all copies together."""
    with _lock:
        records = [item for storage in list(_storages.values()) for item in storage.records.items()]
        return sum(recipe.bytes for (recipe, _), record in records if record.copy is not None)


def forget_weights() -> None:
    """Drops every packed copy of a weight; the next calls make new ones.

    Needed only after a write to a small part of a weight that PyTorch does not count, such as `weight.data[0, 0] = 1`
    (docs/cpu-products.md).
    """
    with _lock:
        for storage in list(_storages.values()):
            _release(storage)


def _known(storage: torch.UntypedStorage) -> Storage:
    address = storage._cdata
    if address not in _storages:
        _storages[address] = Storage(StorageWeakRef(storage))
        weakref.finalize(storage, _gone, address).atexit = False
    return _storages[address]


def _gone(address: int) -> None:
    """The weight's memory was freed."""
    with _lock:
        storage = _storages.pop(address, None)
        if storage is not None:
            _release(storage)


def _release(storage: Storage) -> None:
    for record in storage.records.values():
        record.release()


def _untrusted(weight: torch.Tensor, storage: torch.UntypedStorage) -> str:
    """Why the weight's write count cannot be relied on; "" if it can."""
    if storage.is_shared():
        return "other processes may write to it"
    if not storage.resizable():
        return "its memory is not PyTorch's own"
    own = 2 + weight._is_view()  # the weight, the base of a view (which shares its count), and `storage`
    if torch._C._storage_Use_Count(storage._cdata) > own:
        return "other tensors share its memory"
    return "" if _bytes_of(weight) else "it is not dense"


def _bytes_of(weight: torch.Tensor) -> int:
    """Bytes of a dense weight; 0 for a weight with gaps."""
    dense = torch.ops.aten.is_non_overlapping_and_dense(weight)
    return weight.numel() * weight.element_size() if dense else 0


def _distrust(storage: Storage, weight: torch.Tensor) -> None:
    """A packed weight has changed without being counted."""
    storage.trusted = False
    _release(storage)
    log.warning(
        "A weight of %s was written to past PyTorch's count of writes (through .data, or by other code than PyTorch's); no "
        "packed copy of it is kept from now on.", " × ".join(map(str, weight.shape)),
    )  # fmt: skip


def _watch_optimizers() -> None:
    if not _hook:
        _hook.append(register_optimizer_step_post_hook(_after_step))


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Counts every parameter of the optimizer as changed after a step, since fused optimizers do not count their writes."""
    if torch.compiler.is_compiling():
        return
    with _lock:
        packed = {pointer: storage for storage in list(_storages.values()) for _, pointer in storage.records}
        for group in optimizer.param_groups if packed else ():
            for parameter in group["params"]:
                storage = packed.get(parameter.data_ptr())
                for record in storage.records.values() if storage is not None else ():
                    if record.copy is not None:
                        record.lapse()
