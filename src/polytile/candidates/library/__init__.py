"""Calls of the library as candidates: ATen's operators and products, padded and split products, cuBLASLt's own choices.

Enters: a kernel and the device. Leaves: Candidates that run it by library calls, with a second kernel for an epilogue where the
library has none. Called by the candidates of loops and products.
"""
