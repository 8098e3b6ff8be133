"""What a generated Triton kernel is known by: the text that the generators write. Measurements of a kernel whose text has changed
do not count; editing a generator so that it writes the same text discards none.

Texts differ from regime to regime. The text of a candidate is that under `probes`, facts that stand for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

from polytile.codegen.triton.kernel import TritonKernel
from polytile.errors import LoweringError
from polytile.problem import digest
from polytile.runtime.cache import current
from polytile.schedule.facts import Facts

FOLDERS = ("codegen", "codegen/triton", "ir", "matmul", "matmul/triton", "schedule")
"""Folders of the package whose modules decide the text of a Triton kernel."""


@functools.cache
def generator_version() -> str:
    """Digest of the generators' modules, word for word."""
    package = Path(__file__).parents[1]
    return digest("".join(path.read_text("utf-8") for folder in FOLDERS for path in sorted((package / folder).glob("*.py"))))


def text_digest(recipe: str, generate: Callable[[Facts], TritonKernel], probes: Iterable[Facts]) -> str:
    """Digest of what `generate` gives under `probes`, those left out under which it raises LoweringError. `recipe` names all that
    it depends on besides: the cache directory remembers the digest by that and the generators' version, as generating takes
    milliseconds."""
    name = f"texts/{digest(f'{generator_version()} {recipe}')}"
    known = current().read(name)
    if known is None:
        known = digest("\n".join(_texts(generate, probes))).encode()
        current().write(name, known)
    return known.decode()


def _texts(generate: Callable[[Facts], TritonKernel], probes: Iterable[Facts]) -> Iterable[str]:
    for facts in probes:
        try:
            yield generate(facts).text
        except LoweringError as error:
            yield str(error)


__all__ = ["generator_version", "text_digest"]
