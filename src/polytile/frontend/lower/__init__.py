"""Lowers ATen operators to IR, one module per family of operators.

Enters: an operator's arguments as `Tensor` values, sizes and numbers. Leaves: new `Tensor` values; the `Builder` collects loops,
templates and library calls. Only `frontend.graph` calls this package. A lowering that does not cover its arguments raises
LoweringError, and the operator becomes a library call with that reason.
"""
