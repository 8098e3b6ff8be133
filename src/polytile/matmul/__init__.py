"""The matrix product family: canonical problems, configs, and source text for each target.

Enters: an IR Template, a Config. Leaves: a GemmKernel (operands, prologues, epilogue, scales, packed weights) and its text, from
cpp/ and triton/. configs/ has the tile tables by device family. Called by cost, candidates and dispatch; knows codegen, schedule,
ir.
"""
