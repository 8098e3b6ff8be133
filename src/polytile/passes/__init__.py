"""From IR to better IR, one pass a file; `pipeline.py` lists them in order on one screen.

Enters: a `Program` as the frontend lowered it. Leaves: a Program that computes the same with fewer loops, less memory
traffic and simpler indices. Passes measure nothing and never specialise a size; of a device some ask whether it is a GPU.
Called by `polytile.compiler` alone; knows ir.
"""
