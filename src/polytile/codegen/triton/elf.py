"""Reads the resource usage of a cubin's only function. A cubin is an ELF file; two attributes of section `.nv.info`
hold the number of registers (0x2f: symbol, count) and the stack frame, where registers are spilled (0x11: symbol,
bytes)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

FRAME_SIZE, REGISTER_COUNT = 0x11, 0x2F
LONG_FORMAT = 0x04  # the payload follows its 16-bit size; in other formats the size is the payload


def sections(binary: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every section that takes space in the file."""
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", binary, table + k * size) for k in range(count)]
    names = headers[names_at][4]
    for name, kind, _, _, offset, length, *_ in headers:
        start = names + name
        if kind != 8:
            yield binary[start : binary.index(b"\0", start)].decode(), binary[offset : offset + length]


def resources(binary: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) of a thread. Raises ValueError if the file lacks the information."""
    content = next((content for name, content in sections(binary) if name == ".nv.info"), b"")
    attributes = dict(_attributes(content))
    if REGISTER_COUNT not in attributes:
        raise ValueError("the cubin does not say how many registers its function uses.")
    return attributes[REGISTER_COUNT], attributes.get(FRAME_SIZE, 0)


def _attributes(content: bytes) -> Iterator[tuple[int, int]]:
    """(number, value) of the attributes of one function."""
    at = 0
    while at + 4 <= len(content):
        kind, number, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if kind == LONG_FORMAT:
            if size == 8:
                yield number, struct.unpack_from("<II", content, at)[1]
            at += size
