"""Commands by name, and what becomes of a mistake: one message and status 2."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence

from jaxrl_par import checks

# Each is a function of its arguments in the module of that name; imported when used.
COMMANDS = {
    "train": ("train", "train an agent"),
    "resume": ("resume", "go on with a run, to the bit"),
    "eval": ("evaluate", "play greedy episodes with a trained agent"),
    "plot": ("plot", "draw learning curves of one or more runs"),
    "list": ("catalogue", "algorithms, environments and presets"),
    "doctor": ("doctor", "devices, versions, and what is missing"),
}

_EXAMPLES = """
examples:
  jaxrl-par train ppo CartPole-v1 --seed 0
  jaxrl-par train ppo CartPole-v1 --num-envs 2048 --total-steps 1e6 --out runs/mine
  jaxrl-par resume runs/mine
  jaxrl-par eval runs/mine --episodes 100 --render run.gif
  jaxrl-par plot runs/mine --out curves.png

exit status:
  0 done; 2 a mistake in arguments, files or installation; 3 training met numbers that
  are not finite. Saved, and `jaxrl-par resume RUN` goes on: 75 --max-seconds are spent,
  130 interrupted (SIGINT), 143 terminated (SIGTERM).

`jaxrl-par COMMAND --help` says more. JAXRL_PAR_TRACEBACK=1 shows where in the code a
mistake was noticed.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status (see `usage`).

    A mistake gives one message, on stderr.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with warnings.catch_warnings(), _plain_interrupts():
            warnings.showwarning = _show_warning
            return _dispatch(arguments)
    except SystemExit as end:  # from the parser, which has printed its message
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        print("jaxrl-par: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, ImportError, OSError, FloatingPointError) as error:
        if os.environ.get("JAXRL_PAR_TRACEBACK"):
            raise
        print(f"jaxrl-par: error: {error}", file=sys.stderr)
        return 3 if isinstance(error, FloatingPointError) else 2


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        if arguments[1:]:
            raise ValueError(f"--version takes nothing, not {arguments[1]!r}")
        import jaxrl_par

        print(f"jaxrl_par {jaxrl_par.__version__}")
        return 0
    checks.known("command", arguments[0], COMMANDS)
    module = importlib.import_module(f"jaxrl_par.cli.{COMMANDS[arguments[0]][0]}")
    return module.run(arguments[1:])


@contextlib.contextmanager
def _plain_interrupts() -> Iterator[None]:
    """Let SIGINT end the process at once, until a run takes it in hand.

    As an exception it can come up where JAX collects garbage, and be lost.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"jaxrl-par: warning: {message}", file=sys.stderr, flush=True)


def usage() -> str:
    """What `jaxrl-par --help` prints."""
    lines = [f"  {name:8} {text}" for name, (_, text) in COMMANDS.items()]
    head = "usage: jaxrl-par COMMAND ...\n\ncommands:\n"
    return head + "\n".join(lines) + "\n" + _EXAMPLES.rstrip()
