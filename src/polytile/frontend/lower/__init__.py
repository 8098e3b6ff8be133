"""ATen operators to IR, one file per family of operators.

Enters: an operator's arguments as `Tensor` values, sizes and numbers. Leaves: new `Tensor` values; loops, templates and library
calls go to the `Builder`. Called by `frontend.graph` alone. A lowering that does not cover its arguments raises LoweringError,
and the operator becomes a library call with that reason.
"""
