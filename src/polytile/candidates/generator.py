"""A generated Triton kernel is identified by its text. Measurements of a kernel do not count after its text has changed; an
edit of a generator that leaves the text equal discards none.

The text differs from regime to regime. A candidate is identified by its text under `probes`, facts that stand for all others.
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
    """The digest of what `generate` gives under each of `probes`, except those under which it raises LoweringError. `recipe`
    names everything else that the text depends on. The cache directory remembers the digest by the recipe and polytile's
    sources, since generating takes milliseconds."""
    name = f"texts/{digest(f'{source_digest()} {recipe}')}"
    return remembered(name, lambda: digest("\n".join(_texts(generate, probes))))


def _texts(generate: Callable[[Facts], TritonKernel], probes: Iterable[Facts]) -> Iterable[str]:
    for facts in probes:
        try:
            yield generate(facts).text
        except LoweringError as error:
            yield str(error)
