"""Trying kernels in a process that may die, so that the user's does not.

Enters: a candidate's handle, the arguments of a Task, a limit of seconds. Leaves: what the kernel wrote, in memory that
both processes see, and the seconds it took; or a Failure that says how it ended. Callers: tuning/tune.py alone. Calls:
nothing of polytile in the worker (child.py); kernels (handles) and tuning (clones) here.
"""
