"""Each code block of the documents is checked: programs run, commands are ones that the command line takes, and what is shown of
an output is in what a run prints, up to numbers, paths and winners."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from polytile.campaigns import spec
from polytile.cli.app import app
from tests.scripts.documents import DOCUMENTS, ROOT, Block, blocks, skeleton
from tests.scripts.running import printed

PAGES = sorted(str(page.relative_to(ROOT)) for page in DOCUMENTS)
by_page = pytest.mark.parametrize("page", PAGES)

LANGUAGES = ("python", "sh", "console", "text", "toml", "json", "cpp")

PROGRAMS = {
    "docs/packages.md": "",
    "docs/attention.md": "",
    "docs/report.md": "",
    "docs/cuda-graphs.md": "import torch, polytile; model = torch.nn.Linear(4, 4)\n",
    "docs/distributed.md": "import torch, polytile; model = torch.nn.Linear(4, 4)\n",
}
"""Pages whose Python runs here, and what has to stand before it."""
RUN_ELSEWHERE = {
    "README.md", "docs/autotune.md", "docs/campaigns.md", "docs/commands.md", "docs/configs.md", "docs/extending.md",
    "docs/first-model.md", "docs/kernels.md", "docs/looking-inside.md", "docs/serving.md", "docs/training.md",
}  # fmt: skip
"""By test_documents.py, and the page of autotuning by tests/autotuner."""

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}

OTHERS = {"pip", "tee", "gcc", "g++", "python", "make", "./main", "export"}
"""Words that commands of other programs begin with."""


@by_page
def test_every_block_says_what_it_is(page: str) -> None:
    if page.startswith(".github/"):
        return  # a template's blocks are for what the reader puts in
    assert not [block.first for block in blocks(page) if block.language not in LANGUAGES]


def test_all_python_runs_in_some_test() -> None:
    pages = (page for page in PAGES if not page.startswith(".github/"))
    assert {page for page in pages for block in blocks(page) if block.language == "python"} == {*PROGRAMS, *RUN_ELSEWHERE}


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    code = "\n".join(block.text for block in blocks(page) if block.language == "python")
    script = tmp_path / "page.py"
    script.write_text(PROGRAMS[page] + code.replace('"nccl"', '"gloo"'))
    printed(script)


def commands(block: Block) -> Iterator[str]:
    """The command lines of a block of a shell."""
    for line in block.text.splitlines():
        if block.language == "sh" or line.startswith("$ "):
            yield from (part.strip() for part in re.split(r"[|;]| && ", line.removeprefix("$ ").partition("  #")[0]))


ALL_COMMANDS = sorted({
    command for page in PAGES for block in blocks(page) if block.language in ("sh", "console") for command in commands(block)
})  # fmt: skip


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_a_command_is_one_that_the_command_line_takes(command: str) -> None:
    words = shlex.split(command, comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):  # a variable of the shell, alone or of one command
        del words[0]
    if not words:
        return
    if words[0] == "polytile":
        parse(words[1:])
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None
    elif words[0] == "python":
        assert (ROOT / words[1]).exists() or words[1] == "warm_up.py"
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    else:
        assert words[0] in OTHERS


def inline(page: str) -> list[str]:
    """Commands of polytile's in the text of a page."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`polytile ([^`]+)`", text.replace("\n", " "))


@by_page
def test_commands_named_in_the_text_are_there(page: str) -> None:
    groups = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for command in inline(page):
        first, *rest = command.split()
        assert first in groups or first.startswith("-"), command
        within = getattr(groups.get(first), "commands", None)
        if within and rest and rest[0].islower() and rest[0].isalpha():
            assert rest[0] in within, command


def parse(words: list[str]) -> None:
    """Parses a command line down to its command, and runs nothing. A file that it names need not be there."""
    command, name = typer.main.get_command(app), "polytile"
    context = None
    while True:
        context = command.make_context(name, list(words), parent=context, resilient_parsing=False)
        if not hasattr(command, "commands"):
            return
        words = [*context._protected_args, *context.args] if hasattr(context, "_protected_args") else context.args
        name, command, words = command.resolve_command(context, words)


def test_the_spec_of_a_campaign_is_one(tmp_path: Path) -> None:
    (text,) = (block.text for block in blocks("docs/campaigns.md") if block.language == "toml")
    (tmp_path / "serving.toml").write_text(text)
    (tmp_path / "sizes.json").write_text('{"format": "polytile sizes", "version": 1, "graphs": {}}')
    assert spec.read(tmp_path / "serving.toml").device == "cpu"


def test_blocks_of_data_can_be_read() -> None:
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language == "json":
            assert all(json.loads(line) for line in block.text.splitlines())
        if block.language == "toml":
            assert spec.tomllib.loads(block.text)


NOT_OF_HERE = {"doctor": "what a machine lacks is said at length", "configs": "its middle is left out"}
"""Commands whose output is compared by its headings alone."""


def test_the_commands_of_the_page_print_what_it_shows(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, as a reader would type them."""
    page = "docs/commands.md"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests" / "tuning").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "tuning" / "matrix.jsonl", tmp_path / "tests" / "tuning")
    (tmp_path / "kernels.py").write_text(next(block.text for block in blocks(page) if block.language == "python"))
    for block in blocks(page):
        for command, shown in (sessions(block) if block.language == "console" else ()):
            if "edited.plan" in command:
                plan = (tmp_path / "softmax.plan").read_text()
                (tmp_path / "edited.plan").write_text(re.sub(r"(?<=t)[12](?=\")", lambda found: str(3 - int(found[0])), plan))
            words = shlex.split(command)[1:]
            result = CliRunner().invoke(app, words)
            assert result.exit_code in (0, 1) and not isinstance(result.exception, Exception), (command, result.output)
            expected, found = skeleton(shown), skeleton(result.output)
            if words[0] in NOT_OF_HERE:
                expected = [line for line in expected if line.startswith(("| verdict", "| subject", "| blocks"))]
            assert [line for line in expected if line not in found] == [], (command, result.output)


def sessions(block: Block) -> list[tuple[str, str]]:
    """Each command of a block, and what is shown below it."""
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))
