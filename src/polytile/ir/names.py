"""Names of kernel arguments that several packages share. This module does not import torch."""

from __future__ import annotations

IS_PACKED = "packed"
"""The integer argument of a product that says whether its weight is packed (see ir.template.IS_PACKED)."""
