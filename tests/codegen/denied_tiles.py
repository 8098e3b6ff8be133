"""A process that may use AMX's tiles when polytile looks, and is denied them before the first kernel asks: prints what is chosen.

    python -m tests.codegen.denied_tiles tune=off force="*amx*"
"""

from __future__ import annotations

import ctypes
import logging
import struct
import sys

import torch

import polytile
from polytile.runtime import cpu

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, SKIP_UNLESS, ANSWER = 0x20, 0x15, 0x06
NUMBER, FIRST_ARGUMENT = 0, 16
NOT_PERMITTED, ALLOW = 0x00050001, 0x7FFF0000


def deny_tiles() -> None:
    """Has Linux refuse requests for parts of the processor's state from now on."""
    asks = ((NUMBER, cpu.ARCH_PRCTL), (FIRST_ARGUMENT, cpu.REQUEST_PERMISSION))
    rules = [rule for k, (place, what) in enumerate(asks) for rule in ((LOAD, 0, 0, place), (SKIP_UNLESS, 0, 3 - 2 * k, what))]
    rules += [(ANSWER, 0, 0, NOT_PERMITTED), (ANSWER, 0, 0, ALLOW)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(text)))
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program) == 0


def main(options: dict[str, str]) -> None:
    logging.basicConfig()
    assert "amx_tile" in cpu.cpu().flags
    deny_tiles()
    linear = torch.nn.Linear(512, 512).bfloat16().requires_grad_(False)
    compiled = polytile.compile(linear, options={"stall": "compile", "isolation": "never", "persist": False, **options})
    for rows in (64, 96, 700):
        x = torch.randn(rows, 512).bfloat16()
        torch.testing.assert_close(compiled(x), linear(x), rtol=2e-2, atol=2e-2)
        print([decision.candidate for decision in polytile.explain(compiled, x).decisions])


if __name__ == "__main__":
    main(dict(part.split("=") for part in sys.argv[1:]))
