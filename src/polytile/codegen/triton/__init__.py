"""Triton source for loops: one module per schedule, and per kind of text that schedules share.

In: a LoopKernel, a Config, the Facts of a regime. Out: TritonKernels, that is source text and launches. `worker.py`
compiles them in a separate process; `interpret.py` runs them on a CPU. Called by matmul, cost and candidates. Only
workers and the interpreter import triton.
"""
