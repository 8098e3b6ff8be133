"""What a loop is before code is generated: its canonical form, the nest of its axes, the facts that its code may rely on, and the
schedules that a CPU (cpu/) or a GPU may have for it.

Enters: an IR Loop with its buffers. Leaves: a LoopKernel (equal work has equal text), its Nest, the Facts of a regime, its
run-time checks; Schedules, which of them are legal, and which are worth trying. May be called by every room above: codegen,
matmul, cost, candidates, dispatch. Knows ir alone.
"""
