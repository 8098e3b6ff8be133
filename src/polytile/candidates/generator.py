"""Which version of the Triton generators this is: measurements of kernels that another version made do not count."""

from __future__ import annotations

import functools
import io
import tokenize
from collections.abc import Sequence
from pathlib import Path

from polytile.problem import digest
from polytile.runtime.cache import current

FOLDERS = ("codegen", "codegen/triton", "matmul", "matmul/triton", "schedule")
"""Folders of the package whose modules decide the text of a Triton kernel."""

_BEGIN = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_BLANK = (tokenize.COMMENT, tokenize.NL)


@functools.cache
def generator_digest() -> str:
    """Digest of the generators' code, comments and docstrings aside: editing those discards no measurement. The cache directory
    remembers it by the whole text, as leaving them out takes a tenth of a second."""
    package = Path(__file__).parents[1]
    texts = [path.read_text(encoding="utf-8") for folder in FOLDERS for path in sorted((package / folder).glob("*.py"))]
    name = f"generators/{digest(''.join(texts))}"
    known = current().read(name)
    if known is None:
        known = digest("".join(map(code_of, texts))).encode()
        current().write(name, known)
    return known.decode()


def code_of(text: str) -> str:
    """Python source without its comments, docstrings and empty lines."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    lines = text.splitlines()
    left_out = [token for token in tokens if token.type == tokenize.COMMENT] + _docstrings(tokens)
    for token in sorted(left_out, key=lambda token: token.start, reverse=True):
        (first, start), (last, end) = token.start, token.end
        lines[first - 1 : last] = [lines[first - 1][:start] + lines[last - 1][end:], *[""] * (last - first)]
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


def _docstrings(tokens: Sequence[tokenize.TokenInfo]) -> list[tokenize.TokenInfo]:
    """The strings that are statements of their own."""
    code = [token for token in tokens if token.type not in _BLANK]
    around = zip([None, *code[:-1]], code, [*code[1:], None], strict=True)
    return [
        token
        for before, token, after in around
        if token.type == tokenize.STRING
        and (before is None or before.type in _BEGIN)
        and (after is None or after.type == tokenize.NEWLINE)
    ]


__all__ = ["code_of", "generator_digest"]
