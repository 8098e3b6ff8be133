"""Packages: a compiled program as one file, which runs without a compiler, and from C++ without Python and torch.

Enters: a module with example inputs, or an exported program. Leaves: an archive with the program in C, its kernels, their
dispatch tables, weights and a manifest (write.py), and what loads it: the C runtime (runtime.c, polytile_package.h) and, from
Python, load.py. Callers: users and the commands. Calls: compiler, frontend, dispatch, wrapper, runtime.
"""
