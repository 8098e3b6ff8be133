"""Names of integers that several rooms ask for, without torch."""

from __future__ import annotations

IS_PACKED = "packed"
"""The integer of a product that says whether its weight comes packed (ir.program.IS_PACKED)."""
