"""The program `foretell`: one file per command; the only place that prints errors and picks exit codes."""

from foretell.cli.main import main

__all__ = ["main"]
