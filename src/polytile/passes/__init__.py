"""Program-to-program passes, one per file; `pipeline.py` lists them in order.

Enters: a `Program` as the frontend lowered it. Leaves: a Program that computes the same with fewer loops, less memory traffic and
simpler indices. Passes measure nothing and never specialise a size; some ask whether a device is a GPU. Only `polytile.compiler`
calls this room; it knows `ir`.
"""
