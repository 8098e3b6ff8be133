"""Loops before code generation: their canonical form, the nest of their axes, the facts that generated code may rely
on, and the schedules available on a CPU (cpu/) or a GPU (gpu/).

In: an IR Loop with its buffers. Out: a LoopKernel (equal work has equal text), its Nest, the Facts of a regime, its
run-time checks; the legal Schedules, and those worth trying. May be called by every room above: codegen, matmul, cost,
candidates, dispatch. Knows only ir.
"""
