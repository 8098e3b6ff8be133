"""A CUDA driver built by the tests, which keeps what it is asked: see stub.c."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from polytile.runtime import compile as compiler
from polytile.runtime import symbols
from polytile.runtime.cuda import driver, launch


class Call(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint),
        ("shared", ctypes.c_uint),
        ("values", ctypes.c_uint64 * 16),
        ("map", ctypes.c_uint64 * 16),
    ]


class Loaded:
    """A loaded library that stands for a driver's: `calls()` are the launches, of the type `call`, since it was made; other names
    are its C variables, which begin as `variables` says."""

    def __init__(self, path: Path, call: type[ctypes.Structure], variables: Mapping[str, int]) -> None:
        object.__setattr__(self, "library", ctypes.CDLL(str(path)))
        object.__setattr__(self, "call", call)
        for name, value in variables.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return ctypes.c_int.in_dll(self.library, f"stub_{name}").value

    def __setattr__(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.library, f"stub_{name}").value = value

    def calls(self) -> list[Any]:
        return list((self.call * 64).in_dll(self.library, "stub_calls")[: self.count])


class Stub(Loaded):
    """The loaded stub of NVIDIA's driver and of torch."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Call, {"count": 0, "launch_error": 0, "load_error": 0, "parameters": 4, "capturing": 0,
                                      "memsets": 0, "tensors": 0, "max_threads": 1024, "described": -1, "delay": 0,
                                      "launching": 0, "deleted_early": 0, "graphs": 0, "launched_graphs": 0, "updates": 0,
                                      "instantiate_error": 0, "update_error": 0, "library_calls": 0, "odd": 0,
                                      "lossy": 0, "node_type": 0})  # fmt: skip


def install(patch: pytest.MonkeyPatch) -> Stub:
    """Makes a new stub the driver, until the patch is undone and both modules are reset."""
    library = compiler.compile_c("stub_driver", Path(__file__).with_name("stub.c").read_text(), ("-w",)).result()
    made = Stub(library.path)
    patch.setattr(driver, "LIBRARY", str(library.path))
    patch.setattr(launch, "torch_functions", lambda: symbols.addresses(made.library, launch._TORCH_FUNCTIONS))
    driver.reset()
    launch.reset()
    return made


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    yield install(monkeypatch)
    driver.reset()
    launch.reset()
