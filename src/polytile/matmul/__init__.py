"""The family of matrix products: what a product is, which configs it has, and its source text for each target.

Enters: an IR Template, a Config. Leaves: a GemmKernel (operands, prologues, epilogue, scales, packed weights) and text: cpp/ and
triton/. configs/ has the tables of blocks by device family. Called by cost, candidates and dispatch; knows codegen, schedule, ir.
"""
