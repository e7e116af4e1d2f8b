"""Parses `argv`, runs the command and picks the exit code.

0 the job fits; 3 it would run out of memory; 1 the script itself failed; 2 wrong usage or an unsupported environment;
130 interrupted. Commands are imported on use, and rich only by them, so that `--help` starts at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import keyword
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType
from typing import NoReturn

from foretell import __version__
from foretell.cli.terminal import say
from foretell.errors import ForetellError, UsageError

# name -> its line in `foretell --help`. The module foretell.cli.<name> has `add_arguments` and `execute`; a name that
# is a Python keyword gets an underscore: foretell.cli.import_.
COMMANDS = {
    "run": "run a training script on a virtual GPU and estimate the memory it needs",
    "gpus": "list the GPUs foretell knows",
    "report": "show the result of a saved trace",
    "what-if": "replay a saved trace on another GPU or with other allocator options",
    "diff": "compare two runs: peaks, categories, modules, blocks",
    "import": "estimate a job recorded on the CPU with torch.profiler",
    "calibrate": "measure a real GPU, for use with foretell run --profile",
    "evaluate": "compare estimates with runs measured on real GPUs",
    "doctor": "check the installation",
}
INTERRUPTED = 130

_DESCRIPTION = "Run your PyTorch training script on a GPU you don't have, and see how much memory it needs."
_EPILOG = """examples:
  foretell run --gpu rtx-3060 train.py --batch-size 64
  foretell run --gpu a100-80gb --json - -m my_package.train > estimate.json
  foretell gpus

exit codes: 0 the job fits; 3 it would run out of memory; 1 the script itself failed;
            2 wrong usage or an unsupported environment; 130 interrupted
"""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See `{self.prog} --help`.")


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with _terminated_as_interrupted():
            return _dispatch(words)
    except ForetellError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted; all child processes have been stopped.")
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    parser = Parser(
        prog="foretell",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"foretell {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    name = next((word for word in words if not word.startswith("-")), None)
    for command, summary in COMMANDS.items():
        sub = commands.add_parser(
            command,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if command == name:
            module = _module(command)
            module.add_arguments(sub)
            words = module.prepare(sub, words) if hasattr(module, "prepare") else words
    if not words:
        parser.print_help()
        return 0
    options, unknown = parser.parse_known_args(words)
    if unknown:
        where = f"foretell {options.command}" if options.command else "foretell"
        raise UsageError(f"unknown option {unknown[0]}. `{where} --help` lists the options.")
    if options.command is None:
        parser.error("no command given")
    return int(_module(options.command).execute(options))


def _module(command: str) -> ModuleType:
    name = command.replace("-", "_")
    return importlib.import_module(f"foretell.cli.{name}_" if keyword.iskeyword(name) else f"foretell.cli.{name}")


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM and a closed terminal stop the child just as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            previous[number] = signal.signal(number, interrupt)
    except ValueError:  # not the main thread: the caller handles signals
        pass
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
