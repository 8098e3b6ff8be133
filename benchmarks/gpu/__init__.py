"""Loops on a GPU: one polytile compile against eager, the peer's dynamic compile and the peer compiled for each shape."""
