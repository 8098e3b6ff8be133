"""Trying kernels in a process that may die, so that the user's does not.

Enters: candidates' handles, the arguments of a Task, a limit of seconds. Leaves: what a kernel wrote, in memory that both
processes see, or, on a GPU, that it ended and wrote only inside; or a Failure that says how it ended. Callers: tuning/tune.py
alone. Calls: nothing of polytile in the worker (child.py, device.py); kernels and tuning (clones) here.
"""
