"""`foretell explain-oom`: reads an out-of-memory message, and says why it came and what helps."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from foretell.cli.jobs import add_job, job_of
from foretell.cli.terminal import say
from foretell.errors import UsageError

_EPILOG = """\
FILE is anything that contains the message: a log, a traceback, the output of a notebook; - reads standard input.
A script after -- is run on a virtual GPU with the memory that the message names (or on --gpu NAME): foretell then says
what differs from the prediction, and tries what helps.

examples:
  foretell explain-oom train.log
  foretell explain-oom - < error.txt
  foretell explain-oom train.log --gpu rtx-3090 -- train.py --batch-size 64
  foretell explain-oom train.log --json - -- train.py --batch-size 64

exit codes: 0 explained; 1 the script itself failed; 2 no out-of-memory message found, or wrong usage
"""
_MOST_BYTES = 32 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell explain-oom FILE|- [options] [-- SCRIPT.py|-m MODULE|COMMAND [ARGS...]]"
    parser.epilog = _EPILOG
    parser.add_argument("file", metavar="FILE", help="a text that contains the message; - for standard input")
    parser.add_argument(
        "--message", metavar="N", type=_number, default=1,
        help="which message to explain if the text has several (default: the first that has numbers)",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the explanation as JSON; - for standard output")
    parser.add_argument("--quiet", action="store_true", help="do not show progress")
    add_job(parser)


def prepare(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Puts FILE after the options, where argparse accepts it together with the script."""
    end = words.index("--") if "--" in words else len(words)
    ours, script = words[:end], words[end + 1 :]
    takes_value = {name for action in parser._actions for name in action.option_strings if action.nargs is None}
    options: list[str] = []
    files: list[str] = []
    is_value = False
    for word in ours:
        is_option = is_value or (word.startswith("-") and word != "-")
        (options if is_option else files).append(word)
        is_value = not is_value and word in takes_value
    command, *files = files
    if not files:
        return words
    if len(files) > 1:
        raise UsageError(
            f"one FILE, not {len(files)}: {' '.join(files[:3])}. Put -- before the script: -- {files[1]} ..."
        )
    return [command, *options, "--", *files, *script]


def execute(options: argparse.Namespace) -> int:
    from foretell import gpus
    from foretell.cli.files import check_targets, write
    from foretell.cli.terminal import console, ignore_broken_pipe
    from foretell.postmortem import card_of, read_oom, text, with_script

    sources = [] if options.file == "-" else [Path(options.file)]
    check_targets({"--json": options.json}, sources=sources)
    card = None if options.gpu is None else gpus.find(options.gpu)
    explanation = read_oom(_text_of(options.file), expected=card, message=options.message)
    if options.job:
        if card is None and not options.profile:
            card = card_of(explanation)
            others = ", ".join(explanation.cards[1:])
            if not options.quiet:
                say(f"no --gpu given; assuming {card.name} by its memory" + (f" (as much: {others})" if others else ""))
        job = job_of(options, gpu=card)
        explanation = with_script(explanation, job, say=_quietly if options.quiet else say)
    document = explanation.to_json()
    if options.json and options.json != "-":
        write(Path(options.json), document + "\n")
    with ignore_broken_pipe():
        if options.json == "-":
            print(document, flush=True)
        else:
            text.render(explanation, console())
    return 0


def _quietly(text: str) -> None:
    """Say nothing (`--quiet`)."""


def _text_of(name: str) -> str:
    from foretell import disk

    if not name:
        raise UsageError("the file name is empty. Give a file, or - for standard input.")
    try:
        if name != "-":
            return _decoded(disk.read(Path(name), most_bytes=_MOST_BYTES))
        if sys.stdin is None or sys.stdin.closed:
            raise OSError(0, "standard input is closed")
        if sys.stdin.isatty():
            say("paste the message, then press Ctrl-D")
        data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise OSError(0, f"more than {_MOST_BYTES >> 20} MiB, the most that is read")
        return _decoded(data)
    except OSError as error:
        raise UsageError(
            f"cannot read {name}: {error.strerror or error}. Cut out the lines around the error."
        ) from None


def _decoded(data: bytes) -> str:
    """UTF-8, or what PowerShell writes."""
    is_utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return data.decode("utf-16" if is_utf16 else "utf-8", errors="replace")


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= 10**6:
        raise UsageError(f"--message {text}: must be a number, 1 or more.")
    return int(text[:9])
