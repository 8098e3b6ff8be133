"""Clones stand in for what a kernel writes: same sizes, strides, alignment and overlaps; the caller sees nothing."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from polytile.tuning import headroom
from polytile.tuning.clones import ALIGNMENT, Clones, overlapping, stand_ins


def test_only_written_tensors_are_cloned_and_ints_and_none_pass() -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    clones = Clones((x, None, y, 4, 4), ("in", "in", "out"))
    assert clones.args[0] is x and clones.args[1] is None and clones.args[3:] == (4, 4)
    clones.args[2].fill_(7.0)
    assert not bool((y == 7.0).any())


def test_scratch_is_passed_on_as_it_is() -> None:
    scratch = torch.empty(16)
    clones = Clones((torch.randn(4), torch.empty(4), scratch), ("in", "out", "scratch"))
    assert clones.args[2] is scratch


def test_the_same_buffer_passed_twice_stays_one_clone() -> None:
    """A BatchNorm's running statistics are an input and an output."""
    running = torch.randn(3)
    clones = Clones((running, running), ("in", "out"))
    assert clones.args[0] is clones.args[1]
    assert clones.changes_its_input
    clones.args[1].add_(1.0)
    assert torch.equal(clones.args[0], running + 1.0)
    clones.restore()
    assert torch.equal(clones.args[0], running)


def test_views_that_overlap_overlap_in_the_clones_too() -> None:
    base = torch.arange(20.0)
    clones = Clones((base[2:12], base[7:17]), ("inout", "inout"))
    clones.args[0][5] = -1.0
    assert clones.args[1][0] == -1.0
    assert base[7] == 7.0
    assert torch.equal(clones.args[1][5:], base[12:17])


def test_views_of_one_storage_that_do_not_overlap_are_independent() -> None:
    base = torch.arange(20.0)
    groups = overlapping((base[:10], base[10:]), ("in", "out"))
    assert [len(group) for group in groups] == [1, 1]
    assert Clones((base[:10], base[10:]), ("in", "out")).args[0].data_ptr() == base.data_ptr()


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(0, 3),
    st.integers(1, 3),
    st.permutations([0, 1, 2]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64]),
)
def test_clones_have_the_sizes_strides_alignment_and_values_of_the_original(
    sizes: list[int], offset: int, step: int, order: list[int], dtype: torch.dtype
) -> None:
    base = torch.randint(0, 2, (offset + 400 * step,)).to(dtype)
    tensor = base[offset:][: 125 * step : step][: torch.Size(sizes).numel()].reshape(sizes)
    tensor = base.as_strided(sizes, [s * step for s in tensor.contiguous().stride()], offset)
    tensor = tensor.permute([axis for axis in order if axis < tensor.dim()])
    clones = Clones((tensor,), ("inout",))
    (clone,) = clones.args
    assert clone.shape == tensor.shape and clone.stride() == tensor.stride() and clone.dtype == tensor.dtype
    assert (clone.data_ptr() - tensor.data_ptr()) % ALIGNMENT == 0
    assert torch.equal(clone, tensor)
    before = tensor.clone()
    clone.copy_(torch.ones_like(clone))
    assert torch.equal(tensor, before)


def test_poison_is_nan_in_outputs_and_nothing_in_what_is_read() -> None:
    x, y, n = torch.randn(4), torch.zeros(4), torch.zeros(4, dtype=torch.int32)
    clones = Clones((x, y, n), ("inout", "out", "out"))
    clones.poison()
    assert torch.equal(clones.args[0], x)
    assert bool(clones.args[1].isnan().all())
    assert not bool((clones.args[2] == 0).any())
    assert clones.damage() is None


@pytest.mark.parametrize("beyond", [-1, 8])
def test_a_write_beside_an_output_is_noticed(beyond: int) -> None:
    y = torch.zeros(8)
    clones = Clones((torch.randn(2), y), ("in", "out"))
    clones.poison()
    clones.args[1].as_strided((1,), (1,), clones.args[1].storage_offset() + beyond).fill_(1.0)
    assert clones.damage() == 1


def test_a_write_between_the_columns_of_a_strided_output_is_noticed() -> None:
    """A kernel that writes a slice of a concatenation must leave the neighbouring slices alone."""
    buffer = torch.zeros(4, 8)
    clones = Clones((buffer[:, 2:5],), ("out",))
    clones.poison()
    clones.args[0].fill_(1.0)
    assert clones.damage() is None
    wider = clones.args[0].as_strided((3, 4), (8, 1), clones.args[0].storage_offset())
    wider.fill_(1.0)
    assert clones.damage() == 0
    assert not bool(buffer.any())


def test_widened_arguments_are_float64_and_share_memory_as_before() -> None:
    base = torch.arange(12.0)
    index = torch.arange(3)
    wide = stand_ins((base[:8], base[4:], index, 5), ("in", "inout", "in"))
    assert wide is not None
    assert wide[0].dtype == wide[1].dtype == torch.float64
    assert wide[2] is index and wide[3] == 5
    wide[1][0] = -1.0
    assert wide[0][4] == -1.0 and base[4] == 4.0


def test_expanded_arguments_are_widened_with_their_repetitions() -> None:
    x = torch.randn(4, 1, 5).expand(4, 6, 5)
    stood_in = stand_ins((x, torch.empty(3)), ("in", "out"))
    assert stood_in is not None
    assert stood_in[0].stride() == x.stride()
    assert torch.equal(stood_in[0], x.double())


def test_arguments_of_two_dtypes_in_one_memory_cannot_be_widened() -> None:
    base = torch.zeros(4)
    assert stand_ins((base, base.view(torch.int32)), ("in", "out")) is None


def test_stand_ins_of_their_own_precision_are_copies_where_something_is_written() -> None:
    base, index = torch.arange(12, dtype=torch.bfloat16), torch.arange(3)
    own = stand_ins((base[:8], base[4:], index), ("in", "inout", "in"), wide=False)
    assert own is not None and own[0].dtype == torch.bfloat16 and own[2] is index
    own[1][0] = -1.0
    assert own[0][4] == -1.0 and base[4] == 4.0


def test_empty_tensors_are_no_trouble() -> None:
    clones = Clones((torch.empty(0, 3), torch.empty(3, 0)), ("in", "out"))
    clones.restore()
    clones.poison()
    assert clones.damage() is None and clones.args[1].shape == (3, 0)


# A device that is full. The host stands in for it here.


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(headroom.HEADROOM, "cpu", lambda device: 0)


def test_on_a_full_device_kernels_are_tried_on_the_memory_itself_and_it_is_as_before_afterwards(full: None) -> None:
    x, y = torch.randn(4), torch.randn(5)
    before = y.clone()
    clones = Clones((x, y), ("in", "inout"))
    assert clones.args[1].data_ptr() == y.data_ptr()
    clones.args[1].add_(1.0)
    clones.restore()
    assert torch.equal(y, before)
    clones.args[1].fill_(0.0)
    clones.close()
    assert torch.equal(y, before)


def test_on_a_full_device_a_strided_tensor_is_kept_without_its_neighbours_being_touched(full: None) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    before = base.clone()
    clones = Clones((base[:, 1:4].t(), base[0, :0]), ("inout", "out"))
    clones.args[0].zero_()
    clones.close()
    assert torch.equal(base, before)


def test_on_a_full_device_outputs_are_poisoned_in_place_and_gaps_left_alone(full: None) -> None:
    base = torch.zeros(4, 8)
    clones = Clones((base[:, 2:5],), ("out",))
    clones.poison()
    assert bool(base[:, 2:5].isnan().all()) and int(base.isnan().sum()) == 12
    numbers = torch.zeros(3, dtype=torch.int32)
    Clones((numbers,), ("out",)).poison()
    assert not bool((numbers == 0).any())
    assert clones.damage() is None


def test_a_clone_is_one_allocation_of_its_bytes_whatever_the_strides() -> None:
    """No contiguous temporary beside it: what is asked of the device is the block alone."""
    asked: list[int] = []

    def counting(size: int, device: torch.device) -> torch.Tensor:
        asked.append(size)
        return torch.empty(size, dtype=torch.uint8)

    tensor = torch.randn(64, 32).t()[::2]
    clones = Clones((tensor,), ("inout",), counting)
    clones.restore()
    assert len(asked) == 1 and asked[0] <= 64 * 32 * 4 + 512
    assert torch.equal(clones.args[0], tensor)


def test_on_a_full_device_the_reference_runs_on_the_host(full: None) -> None:
    assert not headroom.wide_fits((torch.zeros(4),), ("in",))
    wide = stand_ins((torch.arange(3), torch.zeros(2)), ("in", "out"), on_host=True)
    assert wide is not None and wide[1].dtype == torch.float64
