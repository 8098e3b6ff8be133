"""Which candidates are worth measuring."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polytile import options, store
from polytile.dispatch.links.prior import shortlist, varied
from polytile.dispatch.multikernel import MultiKernel
from polytile.store.reading import Record
from polytile.tuning.replay import matrices
from tests.dispatch.helpers import SPEC, Fake, arguments, spec


def measured(*candidates: Fake, m: int = 32) -> set[str]:
    """Names of the candidates that a first call at M = m times."""
    kernel = MultiKernel(SPEC, candidates)
    kernel(*arguments(m))
    (decision,) = kernel.decisions
    return {standing.candidate for standing in decision.standings if standing.seconds == standing.seconds}


def test_a_candidate_predicted_to_lose_clearly_is_not_measured() -> None:
    assert measured(Fake("a", predicted=1e-5), Fake("b", predicted=1.5e-5), Fake("c", predicted=1.7e-5)) == {"a", "b"}


@pytest.mark.usefixtures("fake_clock")
def test_calls_in_place_of_a_loop_are_measured_where_they_are_predicted_near_or_all_else_is_slower() -> None:
    assert measured(Fake("a", 1e-5, 1e-5), Fake("aten", 9e-6, 1.5e-5, origin="library")) == {"a", "aten"}
    near = Fake("a", 2e-5, 1e-5), Fake("aten", 1e-6, 3e-5, origin="library")
    assert measured(*near, m=512) == {"a"}, "it is as fast as the library was predicted"
    kernel = MultiKernel(SPEC, [Fake("a", 9e-5, 1e-5), Fake("aten", 4e-5, 3e-5, origin="library")])
    kernel(*arguments(4096))
    (decision,) = kernel.decisions
    assert (decision.candidate, decision.link) == ("aten", "measured")
    assert {s.candidate for s in decision.standings if s.seconds == s.seconds} == {"a", "aten"}


def test_the_one_call_that_eager_makes_is_measured_beside_a_loop_whatever_its_prediction() -> None:
    generated = [Fake(name, predicted=1e-5) for name in "abcd"]
    one, two = (Fake(f"{n} calls", 1.0, 1e-3, "library", operators=("aten.gather.default",) * n) for n in (1, 2))
    assert measured(*generated, two) == measured(*generated)
    assert measured(*generated, one) == measured(*generated) | {"1 calls"}


def test_a_products_library_is_measured_though_predicted_to_lose() -> None:
    kernel = MultiKernel(SPEC, [Fake("a", predicted=1e-5), Fake("aten", predicted=1e-4, origin="library")])
    args = arguments(32)
    request = kernel.request(kernel.dispatcher.key_of(*args), (32, 64), args)
    assert [c.name for c in shortlist(replace(request, spec=spec(family="mm")))] == ["a", "aten"]


def test_what_is_ready_made_takes_no_generated_kernels_place() -> None:
    lt = [Fake(f"lt{k}", predicted=1e-6, origin="cublaslt") for k in range(3)]
    generated = [Fake(name, predicted=1e-5) for name in "abc"]
    library = Fake("aten", predicted=1e-6, origin="library")
    assert measured(*generated, library, *lt) == {"a", "b", "aten", "lt0", "lt1", "lt2"}
    assert measured(*generated, Fake("padded", predicted=1e-4, origin="padding"), library) == {"a", "b", "aten"}


@pytest.mark.parametrize(("family", "generated"), [("loop", 6), ("mm", 5)])
def test_beside_loops_on_a_gpu_the_library_takes_no_place(family: str, generated: int) -> None:
    candidates = [Fake(f"c{i}") for i in range(8)] + [Fake("aten", origin="library")]
    kernel = MultiKernel(SPEC, candidates)
    args = arguments(32)
    request = kernel.request(kernel.dispatcher.key_of(*args), (32, 64), args)
    on_gpu = replace(request, spec=spec(family=family, target=torch.device("cuda", 0)))
    assert [c.name for c in shortlist(on_gpu)] == [*[f"c{i}" for i in range(generated)], "aten"]


def test_no_more_than_a_part_shares_what_predictions_err_alike_in() -> None:
    ranked = ["tile 64", "tile 64 again", "tile 64 once more", "split 64", "tile 128", "split 128"]
    assert varied(ranked, 3, str.split) == ["tile 64", "tile 64 again", "split 128"]
    assert varied(ranked, 4, str.split) == ["tile 64", "tile 64 again", "tile 64 once more", "split 128"], "three of four"
    assert varied(ranked[:4], 4, str.split) == ranked[:4], "filled up"
    assert varied(ranked, 9, str.split) == ranked and varied(ranked, 2, lambda name: ()) == ranked[:2]


def test_products_of_one_width_leave_room_for_another() -> None:
    candidates = [Fake(f"c{i}", predicted=1e-5 * (1 + 0.01 * i)) for i in range(3)]
    for candidate, width in zip(candidates, (64, 64, 64), strict=True):
        candidate.traits = (("n", width),)
    other = Fake("wide", predicted=1.5e-5)
    other.traits = (("n", 128),)
    assert measured(*candidates, other) == {"c0", "c1", "wide"}


def test_a_library_candidate_that_is_a_last_resort_is_not_measured() -> None:
    assert measured(Fake("a"), Fake("b"), Fake("interpreted", predicted=1.0, origin="library")) == {"a", "b"}


def test_a_second_source_is_compiled_only_where_it_may_pay() -> None:
    quick = [Fake("a", predicted=1e-5), Fake("a t2", predicted=1.1e-5), Fake("b", predicted=1.1e-5)]
    for candidate, recipe in zip(quick, ("A", "A", "B"), strict=True):
        candidate.recipe = recipe
    assert measured(*quick) == {"a", "a t2"}
    with options.override(tune="thorough"):
        assert measured(*quick, m=64) == {"a", "a t2", "b"}


def test_the_winner_at_a_size_close_by_is_measured_too() -> None:
    candidates = [Fake(f"c{i}", 1e-5, predicted=1e-5 * (1 + 0.01 * i)) for i in range(5)]
    candidates.append(Fake("winner", 1e-6, predicted=lambda sizes: 1e-5 if sizes["M"] == 512 else 1e-3))
    assert "winner" in measured(*candidates, m=512)
    assert "winner" in measured(*candidates, m=1024)
    assert "winner" not in measured(*candidates, m=16384)


def test_everything_is_measured_where_that_is_asked_for_whatever_is_known_close_by() -> None:
    candidates = [Fake("a", predicted=1e-5), Fake("b", predicted=1e-3), Fake("aten", predicted=1.0, origin="library")]
    with options.override(tune="all"):
        kernel = MultiKernel(SPEC, candidates)
        for m in (32, 300, 1000):
            kernel(*arguments(m))
        assert [decision.link for decision in kernel.decisions] == ["measured"] * 3
        assert all(len([s for s in d.standings if s.seconds == s.seconds]) == 3 for d in kernel.decisions)
        (matrix,) = matrices(Record(str(n), n, m) for n, m in enumerate(store.current().measurements()))
        assert len(matrix.problems) == 3 and not matrix.missing()
        again = MultiKernel(SPEC, candidates)
        again(*arguments(32))
        assert again.decisions[0].link == "exact", "what is on record is not measured again"


def test_where_the_whole_shortlist_fails_the_best_predicted_of_the_others_runs() -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no kernel for such strides")

    far = [Fake("far", 1e-5, 9e-5), Fake("near", 1e-5, 5e-5), Fake("broken too", 1e-5, 4e-5, call=broken)]
    kernel = MultiKernel(SPEC, [*far, Fake("a", 1e-5, 1e-5, call=broken), Fake("b", 1e-5, 1.1e-5, call=broken)])
    kernel(*arguments(300))
    (decision,) = kernel.decisions
    assert (decision.candidate, decision.link) == ("near", "measured")
    known = {standing.candidate: standing for standing in decision.standings}
    assert all("no kernel for such strides" in known[name].note for name in ("a", "b", "broken too"))
    assert not known["far"].note, "it was not tried"
