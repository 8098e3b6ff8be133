"""Triton source for loops: one module for each schedule, and for each kind of text that schedules share.

Enters: a LoopKernel, a Config, the Facts of a regime. Leaves: TritonKernels: source text and launches; `worker.py` compiles them
in a process of its own, `interpret.py` runs them on a CPU. Called by matmul, cost and candidates; triton is imported in workers
and under the interpreter alone.
"""
