"""The lowest room: compiles C++ text, loads it, and launches it.

In: C++ source (with the ABI of generated kernels), tensors and integers. Out: shared objects in the cache, kernel
addresses, dispatchers (regime key -> entry), burst timings, the device's fingerprint. Any room may call; it knows none
of them. Importing it starts no compiler and no thread. A warm process starts no compiler and no other program at all.
"""
