"""The backend of torch.compile, and the way of a graph through all rooms to one callable.

Enters: the graph that Dynamo captured, options, hints. Leaves: a CompiledProgram, its report for `explain()`, and plans of its
decisions. Called by the package's public functions and by PyTorch; may import every other room except the commands.
"""
