"""Predictions of how long a candidate takes: roofline terms over the bytes, operations and launches of its code.

Enters: a kernel, a Config, sizes, the facts of a device. Leaves: seconds, to rank candidates before any of them is compiled; the
constants name the measurements that they were fitted to. Called by candidates; knows codegen, matmul, schedule, ir, runtime.

Each module begins with its one formula; terms that several have are in roofline.py.

| what runs        | CPU                  | GPU                                                       |
| ---------------- | -------------------- | --------------------------------------------------------- |
| loops            | cpp_loops.py         | triton_loops.py: points, rows; triton_columns.py: columns |
| sums by an index | cpp_loops.py         | triton_segments.py                                        |
| products         | cpp_matmul.py        | triton_matmul.py; the library's: library_matmul.py        |
| attention        | cpp_attention.py     | triton_attention.py                                       |
| the library's    | library_attention.py | library_attention.py                                      |

triton_work.py and triton_estimate.py have what triton_loops.py and triton_columns.py ask of a loop and of a device.
"""
