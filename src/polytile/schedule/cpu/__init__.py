"""How a CPU goes through loops.

Enters: a LoopKernel and the nest of its axes. Leaves: the schedules that are legal for it (space.py) as points of one space
(schedule.py), each shown with its code before and after (catalogue.py), and what each makes of the loop (scheduled.py): which
values are cached, which accesses are transposed, which stores are streamed or may meet. Called by codegen, cost and candidates.
"""
