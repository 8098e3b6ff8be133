"""The family of attentions, softmax(q·kᵀ·scale + mask)·v: what one is, which arguments it takes, and its text for each target.

Enters: an IR Attention. Leaves: an AttentionProblem, its flat arguments, a reference, and text (cpp/, triton/). Called by cost,
candidates and dispatch; knows codegen, schedule, ir.
"""
