"""Keepers: what the launcher remembers of a weight, and when it asks Python."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from polytile.runtime import background, native, weights
from tests.waiting import PATIENCE


class Asked:
    """A miss that gives what it was told to, and remembers with what it was asked."""

    def __init__(self) -> None:
        self.given: Tensor | None = None
        self.calls: list[Tensor] = []

    def __call__(self, weight: Tensor) -> Tensor | None:
        self.calls.append(weight)
        return self.given


def keeper(asked: Asked, weight: Tensor, *, wait: int = 0, patience: int = 0) -> Any:
    """A keeper that watches `weight`."""
    made = native.module().Keeper(asked)
    made.watch(weight, weight._version, StorageWeakRef(weight.untyped_storage()), wait, patience)
    return made


def hold(made: Any, weight: Tensor) -> Tensor:
    """A copy that the keeper then has of the weight."""
    copy = weight.detach().clone()
    size = weight.numel() * weight.element_size()
    made.hold(copy, size, native.module().sample(weight.data_ptr(), size))
    return copy


def test_storages_and_counts_are_read_as_python_reads_them() -> None:
    weight = torch.nn.Parameter(torch.zeros(8, 8))
    with torch.no_grad():
        weight.add_(1)
        weight[2:].mul_(3)
    assert native.module().weighs()
    assert native.module().state_of(weight) == (weight.untyped_storage()._cdata, weight._version)
    assert native.module().state_of(weight.data) == (weight.untyped_storage()._cdata, 0)
    for declined in (None, 3, torch.empty(0), torch.empty(2, device="meta")):
        assert native.module().state_of(declined) is None


def test_inference_tensors_are_declined_and_never_asked_for_their_count() -> None:
    with torch.inference_mode():
        weight = torch.zeros(8, 8)
    asked = Asked()
    made = native.module().Keeper(asked)
    assert native.module().state_of(weight) is None
    made.watch(weight, 0, StorageWeakRef(weight.untyped_storage()), 5, 5)
    assert made(weight) is None and len(asked.calls) == 1


def test_a_weight_is_watched_for_so_many_unchanged_calls() -> None:
    asked, weight = Asked(), torch.zeros(8, 8)
    made = keeper(asked, weight, wait=2, patience=3)
    assert [made(weight) for _ in range(2)] == [None, None] and not asked.calls
    weight.add_(1)
    assert [made(weight) for _ in range(4)] == [None] * 4 and not asked.calls
    assert made(weight) is None and asked.calls == [weight]


def test_a_copy_is_found_until_something_is_different() -> None:
    asked, weight = Asked(), torch.zeros(64, 64)
    made = keeper(asked, weight)
    copy = hold(made, weight)
    assert made(weight) is copy and made(weight) is copy and made.hits == 2 and not asked.calls
    weight.add_(0)
    assert made(weight) is None and len(asked.calls) == 1


@pytest.mark.parametrize("other", ["view", "data", "storage", "tensor"])
def test_other_tensors_and_memory_are_another_weight(other: str) -> None:
    asked, weight = Asked(), torch.zeros(64, 64)
    made = keeper(asked, weight)
    hold(made, weight)
    given = {"view": weight.t(), "data": weight.data, "tensor": torch.zeros(64, 64), "storage": weight}[other]
    if other == "storage":
        weight.data = torch.zeros(64, 64)
    assert made(given) is None and len(asked.calls) == 1


def test_writes_that_are_not_counted_show_in_the_sample() -> None:
    asked, weight = Asked(), torch.zeros(200, 300)
    made = keeper(asked, weight)
    hold(made, weight)
    weight.data.add_(1)
    assert made(weight) is None and len(asked.calls) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 65, 1000])
def test_all_words_of_a_small_weight_are_in_its_sample(count: int) -> None:
    memory = torch.arange(count, dtype=torch.int64)
    taken = {native.module().sample(memory.data_ptr(), 8 * count)}
    for place in range(min(count, 32) if count <= 32 else 0):
        memory[place] += 1
        taken.add(native.module().sample(memory.data_ptr(), 8 * count))
    assert len(taken) == (count + 1 if count <= 32 else 1)


def test_a_released_keeper_knows_nothing() -> None:
    asked, weight = Asked(), torch.zeros(8, 8)
    made = keeper(asked, weight)
    hold(made, weight)
    made.release()
    assert made.copy is None and made(weight) is None and len(asked.calls) == 1


def test_wrong_calls_are_refused() -> None:
    made = native.module().Keeper(Asked())
    for arguments in ((), (torch.zeros(2), torch.zeros(2))):
        with pytest.raises(TypeError, match="takes one tensor"):
            made(*arguments)


def test_without_the_launcher_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "module", lambda: None)
    recipe = weights.Recipe("copies", (4, 4), (4, 1), 0, 64, torch.clone)
    site = weights.Site(recipe, 1 << 20, eager=True)
    assert [site.find(torch.zeros(4, 4)) for _ in range(2)] == [None, None]
    assert site.bytes == 0 and "launcher" in site.reason


def test_a_site_waits_longer_for_weights_that_change_soon() -> None:
    weight = torch.nn.Parameter(torch.zeros(64, 64), requires_grad=False)
    recipe = weights.Recipe("halves", (64, 64), (64, 1), 0, 64 * 64 * 4, lambda view: view / 2)
    site = weights.Site(recipe, 1 << 20, eager=True)
    waited = []
    for _ in range(5):
        calls = [site.find(weight)]
        while calls[-1] is None and len(calls) < 1000:
            calls.append(site.find(weight))
        assert calls[-1] is not None and torch.equal(calls[-1], weight / 2)
        waited.append(len(calls) - 1)
        weight.add_(1)
    assert waited == sorted(waited) and waited[0] == 0 and waited[-1] >= 8
    for _ in range(100):
        site.find(weight)
    weight.add_(1)
    assert site.find(weight) is not None  # it served a hundred calls: the next copy is made at once
    site.find.release()
    weights.forget_weights()


def halving(
    site_waits: bool, pause: threading.Event | None = None, begun: threading.Event | None = None
) -> weights.Site:
    """A site whose copies are half of the weight; making one says that it has `begun` and waits for `pause`."""

    def make(view: Tensor) -> Tensor:
        made = view / 2
        if begun is not None:
            begun.set()
        assert pause is None or pause.wait(PATIENCE)
        return made

    recipe = weights.Recipe(object(), (64, 64), (64, 1), 0, 64 * 64 * 4, make)
    return weights.Site(recipe, 1 << 20, eager=True, waits=site_waits)


def test_where_calls_wait_for_nothing_the_background_makes_the_copy() -> None:
    weight = torch.nn.Parameter(torch.randn(64, 64), requires_grad=False)
    pause, begun = threading.Event(), threading.Event()
    site, other = halving(False, pause, begun), halving(False)
    assert [site.find(weight) for _ in range(200)] == [None] * 200 and site.reason == "it is being packed"
    assert site.made == 0 and len(background.pending()) == 1, "it is asked for once"
    assert begun.wait(PATIENCE) and other.find(weight) is None and other.reason == "it is being packed"
    pause.set()
    assert background.wait(PATIENCE)
    found = [other.find(weight) for _ in range(200)]
    assert background.wait(PATIENCE) and (found[-1] is not None or other.find(weight) is not None)
    assert torch.equal(site.find(weight), weight / 2) and site.made == 1 and site.reason == ""  # type: ignore[arg-type]
    weights.forget_weights()


@pytest.mark.parametrize("counted", [True, False])
def test_a_weight_that_changes_while_it_is_packed_is_packed_again(counted: bool) -> None:
    weight, pause = torch.nn.Parameter(torch.randn(64, 64), requires_grad=False), threading.Event()
    site = halving(False, pause)
    assert site.find(weight) is None
    (weight if counted else weight.data).add_(1)
    pause.set()
    assert background.wait(PATIENCE) and site.made == 0
    for _ in range(20):
        found = site.find(weight)
        assert background.wait(PATIENCE)
        if found is not None:
            break
    assert found is not None and torch.equal(found, weight / 2)
    weights.forget_weights()
