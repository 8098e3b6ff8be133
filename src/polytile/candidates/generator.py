"""What a generated Triton kernel is known by: the text that the generators write. Measurements of a kernel whose text has changed
do not count; editing a generator so that it writes the same text discards none.

Texts differ from regime to regime. The text of a candidate is that under `probes`, facts that stand for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polytile.codegen.triton.kernel import TritonKernel
from polytile.errors import LoweringError
from polytile.problem import digest
from polytile.runtime.cache import remembered
from polytile.schedule.facts import Facts
from polytile.version import source_digest


def text_digest(recipe: str, generate: Callable[[Facts], TritonKernel], probes: Iterable[Facts]) -> str:
    """Digest of what `generate` gives under `probes`, those left out under which it raises LoweringError. `recipe` names all that
    it depends on besides: the cache directory remembers the digest by that and polytile's sources, as generating takes
    milliseconds."""
    name = f"texts/{digest(f'{source_digest()} {recipe}')}"
    return remembered(name, lambda: digest("\n".join(_texts(generate, probes))))


def _texts(generate: Callable[[Facts], TritonKernel], probes: Iterable[Facts]) -> Iterable[str]:
    for facts in probes:
        try:
            yield generate(facts).text
        except LoweringError as error:
            yield str(error)
