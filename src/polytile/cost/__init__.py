"""Predictions of how long a candidate takes: roofline terms over the bytes, operations and launches of its code.

Enters: a kernel, a Config, sizes, the facts of a device. Leaves: seconds, to rank candidates before any of them is compiled; the
constants name the measurements that they were fitted to. Called by candidates; knows codegen, matmul, schedule, ir, runtime.
"""
