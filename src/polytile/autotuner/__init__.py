"""`polytile.autotune`: Triton kernels with many configs, chosen in the same way as polytile's own kernels.

Enters: a Triton kernel, its configs, and calls of it. Leaves: the launch of the best config at each call's sizes, and warnings
about hazards in a kernel's source. Called by `polytile.autotune` and the command line. Uses the MultiKernel (dispatch) for every
choice, and Triton to compile; plain launches go by polytile's launcher, others by Triton's.
"""
