"""The wrapper: the program that calls the kernels.

Enters: a Program, for each of its loops and templates a KernelCall (what to call, with which buffers and sizes), and the buffers
that may share memory. Leaves: structured lines (`lines.py`), planned for memory, and one callable made by a backend from them.
Called by `polytile.compiler`; knows ir and runtime.
"""

from polytile.wrapper import compiled, fx, python
from polytile.wrapper.backends import Wrapped, backend, load_of, register_backend
from polytile.wrapper.lines import KernelCall, Line
from polytile.wrapper.schedule import schedule

register_backend("cpp", compiled.wrap, load=compiled.load)
register_backend("python", python.wrap, load=python.load)
register_backend("fx", fx.wrap)

__all__ = ["KernelCall", "Line", "Wrapped", "backend", "load_of", "register_backend", "schedule"]
