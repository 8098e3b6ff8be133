"""`polytile.autotune`: Triton kernels with many configs, chosen as polytile's own kernels are.

Enters: a Triton kernel, its configs, calls of it. Leaves: the launch of the config that is best at each call's sizes; what of a
kernel's source a tuner may trip over. Callers: `polytile.autotune` and the command line. Calls: the MultiKernel (dispatch) for
every choice, and Triton for every launch.
"""
