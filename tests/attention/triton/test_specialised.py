"""Attention by specialised warps: which problems and devices have it, what its launch says, and that it compiles for an H100."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from polytile.attention.problem import AttentionProblem, Bias, Causal
from polytile.attention.triton.configs import label, space, valid
from polytile.attention.triton.schedules import generate
from polytile.candidates.triton import WORKER, Work, job_of, triton_version
from polytile.candidates.triton_attention import AttentionCandidate, attention_candidates
from polytile.codegen.triton.kernel import Launch
from polytile.errors import LoweringError
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.runtime.cuda import cubins, device, workers
from polytile.schedule.facts import Facts

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

FEW = 192
"""Bytes of a thread's numbers that may leave its registers: where it takes tiles in turn, and three warpgroups compute."""
BF16, F16 = torch.bfloat16, torch.float16
H100 = device.named("H100")
PLAIN = AttentionProblem(BF16, 0.3)
SIZE = {"B": 2, "Hq": 8, "Hkv": 2, "Mq": 999, "Mkv": 1001, "D": 128, "Dv": 128}


@pytest.fixture(scope="module", autouse=True)
def workers_end() -> Iterator[None]:
    yield
    workers.reset()


def configs(problem: AttentionProblem = PLAIN, on: device.DeviceFacts = H100, **size: int) -> list[Config]:
    found = [config for config in space(problem, on) if config["variant"] == "specialised"]
    return [config for config in found if valid(problem, config, SIZE | {"Dv": size.get("D", SIZE["D"])} | size)]


def facts(problem: AttentionProblem, size: dict[str, int], unknown: str = "") -> Facts:
    """Every stride is a multiple of 16 and all data aligned, but not those of the name `unknown`."""
    divisible = {name for name in problem.size_names if "stride" in name} - {unknown}
    aligned = {tensor.name for tensor in problem.tensors} - {unknown}
    return Facts(frozenset(divisible), frozenset(aligned), exact=tuple((n, size[n]) for n in ("Hq", "Hkv", "D", "Dv")))


def launch(problem: AttentionProblem, config: Config, overlaps: bool = True, **size: int) -> Launch:
    at = SIZE | {"Dv": size.get("D", SIZE["D"])} | size
    (made,) = generate(problem, config, facts(problem, at), Chip(H100.sms, overlaps)).launches
    return made


def test_it_serves_plain_attention_of_half_precision_on_hopper() -> None:
    assert [label(config) for config in configs()] == [f"specialised 128x128 s2 w12{more}" for more in ("", " resident")]
    assert configs(replace(PLAIN, dtype=F16, causal=Causal.TOP_LEFT, window=(100, 0), lse=True))
    assert configs(Dv=96) and configs(D=80) and len(configs(D=33)) == 4 and configs(D=256)
    assert not configs(D=300) and not configs(Dv=64) and not configs(Mq=64) and not configs(Mkv=0)


@pytest.mark.parametrize("name", ["A100", "B200"])
def test_other_architectures_have_none(name: str) -> None:
    assert not configs(on=device.named(name))


@pytest.mark.parametrize(
    "other",
    [{"dtype": torch.float32}, {"bias": Bias(BF16, "bhmn")}, {"dense": (True, False, True)}, {"backward": True}],
    ids=lambda other: next(iter(other)),
)
def test_other_problems_have_none(other: dict[str, Any]) -> None:
    assert not configs(replace(PLAIN, **other))


def test_the_interpreter_has_none() -> None:
    assert all(each.config["variant"] != "specialised" for each in attention_candidates(PLAIN, "a", torch.device("cpu")))


@pytest.mark.parametrize("unknown", ["q", "out", "k_stride_n", "out_stride_m"])
def test_it_takes_no_part_where_the_copy_engine_might_refuse_a_tensor(unknown: str) -> None:
    config, _ = configs()
    with pytest.raises(LoweringError, match=f"{unknown.split('_')[0]} is not at a multiple of 16 bytes"):
        generate(PLAIN, config, facts(PLAIN, SIZE, unknown), Chip(H100.sms))
    work = Work(PLAIN, "a", H100, 0, lambda config, known: generate(PLAIN, config, known, Chip(H100.sms)))
    candidate = AttentionCandidate(label(config), config, work, lambda _: True, lambda _: 1.0)
    refused, taken = (candidate.specialise(facts(PLAIN, SIZE, name)) for name in (unknown, ""))
    assert taken.valid(SIZE) and not taken.failed() and not taken.right_anywhere
    assert not refused.valid(SIZE) and refused.failed()
    assert not taken.prepare_for(device.named("A100")) and taken.portable_to(device.named("A100")) is None


def test_its_tensors_are_described_with_their_axes() -> None:
    config, resident = configs()
    made = launch(PLAIN, config)
    assert [(each.tensor, each.block) for each in made.descriptors] == [
        ("q", (1, 1, 64, 128)), ("k", (1, 1, 128, 128)), ("v", (1, 1, 128, 128)), ("out", (1, 1, 64, 128)),
    ]  # fmt: skip
    assert [str(size) for size in made.descriptors[1].shape] == ["B", "Hkv", "Mkv", "D"]
    assert [str(stride) for stride in made.descriptors[1].strides] == ["k_stride_b", "k_stride_h", "k_stride_n"]
    described = [(argument.name, argument.index) for argument in made.arguments if argument.type.startswith("tensordesc")]
    assert described == [("desc_q", 0), ("desc_k", 1), ("desc_v", 2), ("desc_out", 3)]
    programs = made.grid[0].subs({each: SIZE[each.name] for each in made.grid[0].free_symbols})
    assert programs == SIZE["B"] * SIZE["Hq"] * 8, "one for every 128 rows of a head"
    grid = launch(PLAIN, resident).grid[0]
    fewer = [grid.subs({each: {**SIZE, "B": batch}[each.name] for each in grid.free_symbols}) for batch in (2, 4)]
    assert fewer == [programs, H100.sms], "each of them takes tiles in turn"


def loaded(problem: AttentionProblem, programs: int, **size: int) -> list[list[tuple[int, int, int, int]]]:
    """What the loading warps of `programs` resident programs copy of q: for each program batch, head, first row and steps of the
    tiles that it takes, in their order. The text of the loading function runs as Python."""
    _, resident = configs(problem, **size)
    text = launch(problem, resident, **size).source.split("def load(")[1].split("@gluon.jit")[0]
    names, given = text.split("):")[0].split(", "), SIZE | size
    calls = {"B": given["B"], "Mq": given["Mq"], "Mkv": given["Mkv"], "BLOCK_M": 128, "BLOCK_N": 128, "ROWS": 64, "MEMBERS": 2}
    found = []
    for program in range(programs):
        taken: list[tuple[int, int, int, int]] = []
        tl = SimpleNamespace(
            program_id=lambda axis, program=program: program, num_programs=lambda axis: programs, static_range=range,
            cdiv=lambda a, b: -(-a // b), where=lambda seen, a, b: a if seen else b, minimum=min, maximum=max,
        )  # fmt: skip
        known = {
            "tl": tl, "mbarrier": SimpleNamespace(wait=lambda *_: None), "fetch": lambda *_: None, **calls,
            "copy": lambda _, batch, head, row, *rest, taken=taken: taken.append((batch, head, row)),
        }  # fmt: skip
        exec(f"def load({', '.join(names)}):" + text.split("):", 1)[1], known)
        known["load"](*[calls.get(name, MagicMock()) for name in names])
        found.append(taken[::2])
    return found


SHARED = {"pairs": (4, 16, 1024), "odd tiles": (3, 5, 300), "fewer tiles than programs": (1, 3, 500), "one tile": (2, 9, 128),
          "some pairs more": (1, 40, 900), "long": (1, 4, 4096), "short": (13, 8, 256)}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_resident_programs_share_the_keys_under_a_mask(name: str) -> None:
    """Each tile is one program's, and no program sees more keys than another one by more than a tile of rows does."""
    batch, heads, length = SHARED[name]
    problem, tiles = replace(PLAIN, causal=Causal.TOP_LEFT), -(-length // 128)
    programs = min(12, batch * heads * tiles)
    taken = loaded(problem, programs, B=batch, Hq=heads, Hkv=heads, Mq=length, Mkv=length)
    all_of_them = itertools.product(range(batch), range(heads), range(0, length, 128))
    assert sorted(itertools.chain(*taken)) == sorted(all_of_them)
    steps = [sum(row // 128 + 1 for _, _, row in each) for each in taken]
    assert max(steps) - min(steps) <= tiles + 1 and max(steps) <= -(-batch * heads * tiles // (2 * programs)) * (tiles + 1)


def test_sums_of_rows_are_exchanged_once_where_registers_allow() -> None:
    """Each step adds a thread's own weights; three warpgroups have no registers left for that."""
    texts = {config["m"]: launch(PLAIN, config, D=64).source for config in configs(D=64) if not config.get("resident")}
    assert "total = total * over(alpha, total) + sums(p)" in texts[128] and "tl.sum(total, 1)" in texts[128]
    assert "total = total * alpha + tl.sum(p, 1)" in texts[192] and "tl.sum(total, 1)" not in texts[192]


COMPILED = {
    "dense": (PLAIN, {}),
    "causal, with lse": (replace(PLAIN, causal=Causal.BOTTOM_RIGHT, lse=True), {}),
    "window of padded heads": (replace(PLAIN, window=(100, 3)), {"D": 80}),
    "negative scale": (replace(PLAIN, scale=-0.5, causal=Causal.TOP_LEFT), {}),
    "narrow heads": (replace(PLAIN, dtype=F16, causal=Causal.TOP_LEFT), {"D": 64}),
    "wide heads": (replace(PLAIN, causal=Causal.TOP_LEFT, lse=True), {"D": 256}),
}


@pytest.mark.parametrize("name", COMPILED)
def test_it_compiles_with_all_sums_in_registers(name: str, empty_cache: Path) -> None:
    problem, size = COMPILED[name]
    launches = [launch(problem, config, **size) for config in configs(problem, **size)]
    jobs = [job_of(one, H100.target) for one in launches]
    promises = [cubins.request(cubins.Order("attention", WORKER, job, triton_version())) for job in jobs]
    for config, promise in zip(configs(problem, **size), promises, strict=True):
        compiled = promise.result().facts
        assert compiled.num_warps == config["warps"]
        assert compiled.spills <= FEW and compiled.shared <= H100.shared_per_block
        assert compiled.registers * compiled.num_warps * 32 <= 65536
        assert [len(each) for each in compiled.descriptors] == [7] * 4
