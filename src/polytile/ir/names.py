"""Names that measurements are stored under, for those who must not import torch."""

from __future__ import annotations

IS_PACKED = "kept"
"""The integer of a product that says whether its weight comes packed (ir.program.IS_PACKED)."""

__all__ = ["IS_PACKED"]
