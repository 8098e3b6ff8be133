"""From a Dynamo graph to IR.

Enters: an FX graph of ATen operators with fake tensors in `node.meta["val"]`. Leaves: a `polytile.ir.program.Program`
(`graph`), and the `torch.compile` backend itself (`backend`). Called by torch.compile and by `polytile.compile`; knows
ir, and hands Programs to `polytile.compiler`. Importing it imports nothing of torch.
"""
