"""What a loop is before any target is chosen: its canonical form, the nest of its axes, and the facts that its code may rely on.

Enters: an IR Loop with its buffers. Leaves: a LoopKernel (equal work has equal text), its Nest, the Facts of a regime, its
run-time checks. May be called by every room above: codegen, matmul, cost, candidates, dispatch. Knows ir alone.
"""
