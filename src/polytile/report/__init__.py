"""Tables, facts and reports for people to read.

Enters: rows of numbers and text from commands and benchmarks; the machine this process runs on; the progress of tuning; the
measurements of a store. Leaves: tables for a terminal, the same tables as Markdown, the environment as plain text values, a
progress bar, and a report (contents.py) as tables (pages.py) or as one HTML file (html.py). May be called by: commands,
benchmarks, and `polytile.compiler` for the progress. Calls: runtime, for facts about the processor; tuning, for its progress and
rules of choice; store, for measurements.
"""

from polytile.report.environment import environment
from polytile.report.tables import Column, Table, show

__all__ = ["Column", "Table", "environment", "show"]
