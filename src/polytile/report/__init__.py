"""Tables and facts for people to read.

Enters: rows of numbers and text from benchmarks, commands and explain(); the machine this process runs on.
Leaves: tables for a terminal, the same tables as Markdown, and the environment as plain text values.
May be called by: commands, benchmarks and the package's own explain().
Calls: runtime, for what it knows of the processor.
"""

from polytile.report.environment import environment
from polytile.report.tables import Column, Table, show

__all__ = ["Column", "Table", "environment", "show"]
