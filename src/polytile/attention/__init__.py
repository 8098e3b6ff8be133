"""The attention family, softmax(q·kᵀ·scale + mask)·v: the problem, its arguments, and its source text for each target.

Enters: an IR Attention. Leaves: an AttentionProblem, its flat arguments, a reference, and text (cpp/, triton/). Called by cost,
candidates and dispatch; knows codegen, schedule, ir.
"""
