"""Predicts the time of a candidate: roofline terms over the bytes, operations and launches of its code.

Enters: a kernel, a Config, sizes, the facts of a device. Leaves: seconds, to rank candidates before any is compiled; the
constants name the measurements to which they were fitted. Called by candidates; knows codegen, matmul, schedule, ir, runtime.

Each module begins with its formula. Terms that several of them share are in roofline.py.

| what runs        | CPU                  | GPU                                                       |
| ---------------- | -------------------- | --------------------------------------------------------- |
| loops            | cpp_loops.py         | triton_loops.py: points, rows; triton_columns.py: columns |
| segment sums     | cpp_loops.py         | triton_segments.py                                        |
| products         | cpp_matmul.py        | triton_matmul.py; the library's: library_matmul.py        |
| attention        | cpp_attention.py     | triton_attention.py                                       |
| library calls    | library_attention.py | library_attention.py                                      |

product_constants.py has the constants of products on a GPU by kind, source and library.
triton_work.py and triton_estimate.py derive what triton_loops.py and triton_columns.py need of a loop and a device.
"""
