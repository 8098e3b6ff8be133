"""Tables and facts for people to read.

Enters: rows of numbers and text from commands and benchmarks; the machine this process runs on; what tuning is doing.
Leaves: tables for a terminal, the same tables as Markdown, the environment as plain text values, and a bar of progress.
May be called by: commands, benchmarks, and `polytile.compiler` for the progress.
Calls: runtime, for what it knows of the processor, and tuning, for its progress.
"""

from polytile.report.environment import environment
from polytile.report.tables import Column, Table, show

__all__ = ["Column", "Table", "environment", "show"]
