"""The command line: `jaxrl-par COMMAND ...`, also `python -m jaxrl_par`."""

from jaxrl_par.cli.main import main

__all__ = ["main"]
