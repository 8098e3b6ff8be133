"""Spares AOTAutograd the text of its graphs where nobody reads it.

AOTAutograd prints the joint, forward and backward graphs of a training step for its logs before it looks whether these are on.
With symbolic sizes that takes long, the longer the larger the graph is.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any

from torch._functorch._aot_autograd import graph_compile
from torch._logging._internal import trace_log

PRINTERS = ("_log_joint_graph", "_log_fw_bw_graphs")
"""The functions of AOTAutograd that log graphs, and return their text for its cache. The last argument is its config."""
LOGS = ("aot_joint_log", "aot_graphs_log")
"""Its loggers, which TORCH_LOGS turns on. TORCH_TRACE gives `trace_log` a handler."""


@functools.cache
def install() -> None:
    """From now on AOTAutograd prints these graphs only for logs that are on, and for its cache. A version of torch that has no
    such functions prints as before."""
    for name in PRINTERS:
        if hasattr(graph_compile, name):
            setattr(graph_compile, name, _where_read(getattr(graph_compile, name)))


def _where_read(printer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(printer)
    def printed(*graphs: Any) -> Any:
        *given, config = graphs
        if config.cache_info is None and not _is_read():
            config = dataclasses.replace(config, enable_log=False)
        return printer(*given, config)

    return printed


def _is_read() -> bool:
    return bool(trace_log.handlers) or any(getattr(graph_compile, name).isEnabledFor(logging.INFO) for name in LOGS)
