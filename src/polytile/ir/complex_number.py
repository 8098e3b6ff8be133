"""Complex constants in generated Python."""

from __future__ import annotations


class ComplexNumber(complex):
    """A complex number that prints as a call. Literals of Python have no NaNs and infinities, and lose the signs of zeros; FX
    writes constants into its code as they print."""

    def __repr__(self) -> str:
        return f"complex('{complex(self)}')"
