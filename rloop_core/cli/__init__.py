"""The command `rloop`: one file a command, imported when it is called and not before."""

from rloop_core.cli.entry import main

__all__ = ["main"]
