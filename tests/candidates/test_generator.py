"""What an edit of a generator means for measurements: those of a kernel with other text do not count, all others do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polytile import version
from polytile.candidates import generator
from polytile.candidates import triton_variants as variants
from polytile.candidates.triton import TritonCandidate, Work
from polytile.candidates.triton_matmul import Arguments, GemmCandidate
from polytile.codegen.triton import schedules
from polytile.codegen.triton.generate import generate
from polytile.matmul.triton import schedules as products
from polytile.matmul.triton.configs import Kind, space
from polytile.problem import Config, digest
from polytile.runtime.cuda import device
from polytile.schedule.facts import Facts
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import P0, S0, kernel_of, load, loop, op, store
from tests.codegen.test_loops_golden import softmax
from tests.codegen.test_triton_gemm_cubins import CASES, CHIP

H100 = device.named("H100")
LOOPED, PERSISTENT = (Config.of(variant=name, x=1, r=1024, warps=4) for name in ("looped", "persistent"))
Edit = Callable[[str, str], None]
SOURCE = Path(schedules.__file__).read_text("utf-8")


def key(config: Config = LOOPED) -> str:
    """The source hash of a kernel as a process finds it that begins now."""
    kernel = kernel_of(softmax())
    work = Work(kernel, "softmax", H100, 0, functools.partial(generate, kernel))
    return TritonCandidate("first", config, work, lambda sizes: True, lambda sizes: 1e-6).source_hash


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> Iterator[Edit]:
    def apply(old: str, new: str) -> None:
        assert old in SOURCE
        text = SOURCE.replace(old, new)
        monkeypatch.setattr(generator, "source_digest", lambda: digest(text))
        exec(compile(text, schedules.__file__, "exec"), vars(schedules))

    before = dict(vars(schedules))
    yield apply
    vars(schedules).update(before)


def test_an_edit_that_leaves_the_text_alone_changes_no_key(edit: Edit) -> None:
    before = key()
    edit('"""Pass after pass over the row."""', '"""Passes."""  # a remark')
    assert key() == before
    edit("    unit.place()", "    here = unit\n    here.place()")
    assert key() == before


def test_other_text_is_another_key_for_the_kernels_that_have_it(edit: Edit) -> None:
    looped, persistent = key(), key(PERSISTENT)
    edit("    for k in range(unit.nest.passes + 1):", '    unit.out.line("pass")\n    for k in range(unit.nest.passes + 1):')
    assert key() != looped and key(PERSISTENT) == persistent


def test_a_text_that_was_generated_before_is_not_generated_again(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(generator, "_texts", lambda generate, probes: pytest.fail("it is remembered"))
    assert key() == before


@pytest.mark.parametrize(
    "module",
    [
        "codegen/triton/generate.py", "codegen/writer.py", "matmul/triton/schedules.py", "attention/triton/flash.py",
        "schedule/nest.py", "ir/expr.py",
    ],
)  # fmt: skip
def test_what_is_remembered_of_texts_holds_until_a_module_that_writes_kernels_changes(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (Path(version.__file__).parent / module).is_file()
    monkeypatch.setattr(version, "__file__", str(tmp_path / "version.py"))
    (tmp_path / module).parent.mkdir(parents=True)
    versions = set()
    for text in ("1", "2", "1"):
        (tmp_path / module).write_text(text)
        versions.add(version.source_digest.__wrapped__())
    assert len(versions) == 2


@pytest.mark.parametrize("name", ["tile 128x128x64 s3 w4", "tile 128x256x128 s3 w8", "tile 128x64x64 s4 w4"])
def test_every_config_of_a_product_has_a_text_of_its_own(name: str) -> None:
    kernel, _ = CASES[name]
    work = Work(Arguments(kernel), "product", H100, 0, lambda config, facts: products.generate(kernel, config, facts, CHIP))
    texts = set()
    configs = space(Kind.of(kernel), H100).configs
    for config in configs:
        candidate = GemmCandidate("one", config, work, lambda sizes: True, lambda sizes: 1e-6)
        text = "".join(generator._texts(functools.partial(work.make, config), candidate.probes))
        assert "tl.store" in text, config
        texts.add(text)
    assert len(texts) == len(configs)


def test_what_a_text_leaves_out() -> None:
    """Comments, which name the operators that a loop came from."""
    kernel = kernel_of(loop([store("o", P0, op("exp", load("x", P0)))], {P0: S0}))
    config = variants.configs(kernel, nest_of(kernel.loop), H100)[0]
    (launch,) = (made := generate(kernel, config, Facts())).launches
    assert "# " in launch.source and "# " not in made.text and "tl.load" in made.text
