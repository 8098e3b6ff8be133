"""The `polytile` command.

Enters: the words of a command line. Leaves: text for a person, and an exit status that a script can test.
One file is one command; `main` is what the console script calls. Nothing in the package imports this room, and a
command imports the rooms that it needs when it runs.
"""

from polytile.cli.app import main

__all__ = ["main"]
