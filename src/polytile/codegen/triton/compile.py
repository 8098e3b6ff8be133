"""Compiles a launch to machine code for one GPU architecture. A pure function, for worker processes; needs no GPU.

The same sources serve NVIDIA architectures, named by capability (90), and AMD architectures, named as in Triton
("gfx942").
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polytile.codegen.function_names import ENTRY
from polytile.codegen.triton.elf import resources
from polytile.codegen.triton.kernel import Launch
from polytile.codegen.triton.module import load
from polytile.errors import CompileFailed


@dataclass(frozen=True)
class Cubin:
    """A compiled launch.

    Attributes
    ----------
    binary : bytes
        The machine code, with the function `name`.
    shared : int
        Bytes of shared memory per block.
    registers : int
        Registers per thread.
    spills : int
        Bytes of local memory per thread, which should be 0.
    num_warps : int
        Warps per block.
    global_scratch, profile_scratch : int
        Bytes of device memory per program for Triton's own data.
    descriptors : tuple of tuple of int
        For each descriptor argument: swizzle mode, bytes per element, element type, and the shape copied at once, as
        the driver numbers them.
    """

    binary: bytes
    name: str
    shared: int
    registers: int
    spills: int
    num_warps: int
    global_scratch: int = 0
    profile_scratch: int = 0
    descriptors: tuple[tuple[int, ...], ...] = ()


FUSION = "TRITON_DEFAULT_FP_FUSION"
"""The environment variable that makes Triton fuse multiplications and additions, or not."""
WIDE = "gfx9"
"""Prefix of the AMD architectures with 64-thread warps."""
ELEMENTS = {8: 10, 9: 8, 10: 9}
"""Element types that hardware and driver number differently: float32 below, float64 and bfloat16."""
_COUNTS = re.compile(r"\.(vgpr_count|private_segment_fixed_size):\s*(\d+)")


def to_cubin(launch: Launch, arch: int | str = 90, symbol: str = ENTRY) -> Cubin:
    """Compiles `launch`, whose function is called `symbol`, for `arch`. Raises CompileFailed with the compiler's own message."""
    import triton
    from triton.backends.compiler import GPUTarget

    if triton.knobs.runtime.interpret:
        raise CompileFailed("Triton kernels cannot be compiled where TRITON_INTERPRET is set; unset it and start again.")
    position = {name: k for k, name in enumerate(launch.signature)}
    function = load(launch.source)[symbol]
    source = _language(function)(
        fn=function,
        signature=launch.signature,
        constexprs={(position[name],): value for name, value in launch.constants},
        attrs={(position[name],): [["tt.divisibility", by]] for name, by in launch.divisible},
    )
    amd = str(arch).startswith("gfx")
    target = GPUTarget("hip", arch, 64 if str(arch).startswith(WIDE) else 32) if amd else GPUTarget("cuda", arch, 32)
    try:
        compiled: Any = triton.compile(source, target=target, options=_options(launch))
    except Exception as error:  # Triton raises whatever its passes and ptxas raise
        where = arch if amd else f"sm_{arch}"
        raise CompileFailed(f"Triton could not compile this kernel for {where}: {error}\n{launch.source}") from error
    binary, name = compiled.asm["hsaco" if amd else "cubin"], compiled.metadata.name
    registers, spills = _amd_resources(compiled.asm["amdgcn"]) if amd else resources(binary)
    metadata = compiled.metadata
    scratch = (getattr(metadata, "global_scratch_size", 0), getattr(metadata, "profile_scratch_size", 0))
    described = tuple(_description(each) for each in getattr(metadata, "tensordesc_meta", None) or ())
    return Cubin(binary, name, metadata.shared, registers, spills, metadata.num_warps, *scratch, described)


def _language(function: Any) -> Any:
    """How Triton takes a function: as its own language or, with explicit layouts and warps, as Gluon."""
    from triton.compiler import ASTSource

    if not function.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def _options(launch: Launch) -> dict[str, Any]:
    """Triton's options. Multiplications and additions become one instruction unless the environment says otherwise: Triton 3.9
    warns that it will no longer do so by itself."""
    fused = {} if FUSION in os.environ else {"enable_fp_fusion": True}
    return {"num_warps": launch.num_warps, "num_stages": launch.num_stages, **fused, **dict(launch.own)}


def _description(descriptor: Mapping[str, Any]) -> tuple[int, ...]:
    """Converts Triton's description of a descriptor argument to the form of a Cubin."""
    kind = descriptor["elem_type"]
    return descriptor["swizzle"], descriptor["elem_size"], ELEMENTS.get(kind, kind), *descriptor["block_size"]


def _amd_resources(assembly: str) -> tuple[int, int]:
    """(registers, bytes of stack) of a thread, as stated in AMD's assembly."""
    counts = {name: int(value) for name, value in _COUNTS.findall(assembly)}
    return counts["vgpr_count"], counts["private_segment_fixed_size"]
