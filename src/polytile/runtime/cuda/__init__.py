"""NVIDIA GPUs: facts about them, cubins compiled in worker processes and kept, and launches through the driver.

In: what to compile (plain data), cubins, tensors and integers. Out: Facts of a device, loaded kernels with the ABI of
native entries, GPU timings. Any room above the runtime may call; it knows none of them, and neither torch.cuda nor
triton is touched at import. Where there is no GPU everything but launching still works.
"""
