"""The wrapper: the program that calls the kernels.

In: a Program, a KernelCall for each of its loops and templates (the callable with its buffers and sizes), and the
buffers that may share memory. Out: structured lines (`lines.py`) with their memory planned, and one callable that a
backend makes from them. Called by `polytile.compiler`; knows ir and runtime.
"""

from polytile.wrapper import compiled, fx, python
from polytile.wrapper.backends import Wrapped, backend, load_of, register_backend
from polytile.wrapper.lines import KernelCall, Line
from polytile.wrapper.schedule import schedule

register_backend("cpp", compiled.wrap, load=compiled.load)
register_backend("python", python.wrap, load=python.load)
register_backend("fx", fx.wrap)

__all__ = ["KernelCall", "Line", "Wrapped", "backend", "load_of", "register_backend", "schedule"]
