"""Measuring candidates on a problem: right first, fast second.

Enters: a Task (problem, candidates, the caller's arguments, their roles, a reference). Leaves: an Attempt for each
candidate, with its Measurement; and, from measurements, the index of the candidate to use (`decide`). Callers:
multikernel, campaigns. Calls: kernels (candidates), runtime (bursts), store (summaries). The caller's tensors and
random state are as before afterwards.
"""
