"""Parses `argv`, runs the command and picks the exit code.

0 the job fits; 3 it would run out of memory; 1 the script itself failed; 2 wrong usage or an unsupported environment;
130 interrupted; 70 a bug in foretell. Commands are imported on use, and rich only by them, so that `--help` starts at
once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import keyword
import platform
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, NoReturn

from foretell import __version__
from foretell.cli.terminal import ignore_broken_pipe, prepare_streams, say
from foretell.errors import ForetellError, UsageError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# name -> its line in `foretell --help`. The module foretell.cli.<name> has `add_arguments` and `execute`; a name that
# is a Python keyword gets an underscore: foretell.cli.import_.
COMMANDS = {
    "run": "run a training script on a virtual GPU and estimate the memory it needs",
    "max-batch": "find the largest batch size with which a script fits",
    "max": "find the largest value of any integer with which a script fits",
    "fit": "find the GPUs a training script fits on",
    "sweep": "show what a script needs with each combination of several values",
    "scale": "find the smallest number of GPUs with which a training of several ranks fits",
    "share": "find out whether jobs can share a GPU, and how fast each will run",
    "guess": "quickly estimate what a model or a script needs, without running a training step",
    "gpus": "list the GPUs foretell knows",
    "report": "show the result of a saved trace",
    "what-if": "replay a saved trace on another GPU or with other allocator options",
    "diff": "compare two runs: peaks, categories, modules, blocks",
    "check": "check the memory a script needs against a limit, a GPU or a baseline, for CI",
    "explain-oom": "explain an out-of-memory message: where the memory was, why, and what helps",
    "import": "estimate a job recorded on the CPU with torch.profiler",
    "calibrate": "measure a real GPU, for use with foretell run --profile",
    "dataset": "make, merge and describe data sets of labelled jobs, without a GPU",
    "train": "train the estimator of `foretell guess` on a data set",
    "evaluate": "compare estimates with runs measured on real GPUs",
    "doctor": "check the installation",
}
INTERRUPTED = 130
BUG = 70
"""EX_SOFTWARE of sysexits.h: not 1, which is the script's."""

_DESCRIPTION = "Run your PyTorch training script on a GPU you don't have, and see how much memory it needs."
_EPILOG = """examples:
  foretell run --gpu rtx-3060 train.py --batch-size 64
  foretell run --gpu a100-80gb --json - -m my_package.train > estimate.json
  foretell gpus

exit codes: 0 the job fits; 3 it would run out of memory; 1 the script itself failed;
            2 wrong usage or an unsupported environment; 130 interrupted; 70 a bug in foretell
"""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See `{self.prog} --help`.")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        with ignore_broken_pipe():
            (file or sys.stdout).write(message)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    try:
        with _terminated_as_interrupted():
            return _dispatch(words)
    except ForetellError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted; all child processes have been stopped.")
        return INTERRUPTED
    except MemoryError:
        say("this machine has run out of memory (RAM, or a limit such as ulimit -v).")
        return 2
    except Exception as error:
        say(_bug_report(error))
        return BUG


def _bug_report(error: Exception) -> str:
    """What to tell the user; the traceback goes to a file."""
    about = f"foretell {__version__}, Python {platform.python_version()}, {platform.platform()}"
    text = f"{about}\n\n{''.join(traceback.format_exception(error))}"
    what = f"internal error: {traceback.format_exception_only(error)[-1].strip()}"
    try:
        with tempfile.NamedTemporaryFile(prefix="foretell-", suffix=".txt", delete=False) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError:
        return f"{what}\n{text}\nThis is a bug in foretell. Please open an issue with this text."
    return f"{what}. This is a bug in foretell. Please open an issue with the traceback, which is in {file.name}."


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
