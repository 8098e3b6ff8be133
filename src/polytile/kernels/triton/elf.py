"""What a cubin, an ELF file, says of the resources its one function needs.

Registers stand in the top byte of the text section's `sh_info`; the stack frame, where spilled registers go, in an attribute
(number 0x11: symbol, bytes) of section `.nv.info`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

FRAME_SIZE = 0x11
VALUE_FORMAT = 0x04  # the attribute's payload follows its 16-bit size; other formats hold it in place


def sections(binary: bytes) -> Iterator[tuple[str, int, bytes]]:
    """(name, sh_info, content) of every section."""
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", binary, table + k * size) for k in range(count)]
    names = headers[names_at]
    for header in headers:
        start = names[4] + header[0]
        name = binary[start : binary.index(b"\0", start)].decode()
        content = b"" if header[1] == 8 else binary[header[4] : header[4] + header[5]]  # 8: takes no space in the file
        yield name, header[7], content


def resources(binary: bytes, function: str) -> tuple[int, int]:
    """(registers, bytes of stack) of a thread. Raises ValueError where the file has no such function."""
    registers, stack = None, 0
    for name, info, content in sections(binary):
        if name == f".text.{function}":
            registers = info >> 24
        elif name == ".nv.info":
            stack = max([stack, *_frames(content)])
    if registers is None:
        raise ValueError(f"the cubin has no function {function!r}.")
    return registers, stack


def _frames(content: bytes) -> Iterator[int]:
    at = 0
    while at + 4 <= len(content):
        kind, attribute, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if kind == VALUE_FORMAT:
            if attribute == FRAME_SIZE:
                yield struct.unpack_from("<II", content, at)[1]
            at += value
