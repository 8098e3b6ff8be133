"""Lowers a Dynamo graph to IR.

Enters: an FX graph of ATen operators with fake tensors in `node.meta["val"]`. Leaves: a `polytile.ir.program.Program` (`graph`),
and a report for each operator. Called by `polytile.compiler`; knows ir and runtime. Importing it does not
import torch.
"""
