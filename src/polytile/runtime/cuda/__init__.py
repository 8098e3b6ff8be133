"""NVIDIA GPUs: device facts, cubins compiled in worker processes and cached, and launches through the driver.

In: compile jobs (plain data), cubins, tensors and integers. Out: facts about a device, loaded kernels with the ABI of
native entries, GPU timings. Any room above the runtime may call; it knows none of them. Importing it imports neither
torch.cuda nor triton. Without a GPU, everything except launching still works.
"""
