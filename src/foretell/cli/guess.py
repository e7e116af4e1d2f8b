"""`foretell guess`: an instant estimate from a model, a script, a config or a summary."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.cli.terminal import ignore_broken_pipe, say
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.features import JobFeatures
    from foretell.guessing import GuessedJob
    from foretell.learn.estimator import Learned
    from foretell.records import Gpu

_EPILOG = """TARGET is a training script with its arguments, a model by name, a Hugging Face config (.json), a summary
as printed by torchsummary or torchinfo (.txt), or a description of a job (.json). A script runs on a virtual GPU up to
its first backward pass; its files are protected as with `foretell run`.

examples:
  foretell guess --gpu rtx-3060 train.py --batch-size 64
  foretell guess --gpu a100-40gb --then-run train.py --batch-size 64
  foretell guess --gpu rtx-4090 --batch-size 128 torchvision:resnet50
  foretell guess --gpu h100 --batch-size 8 --length 1024 config.json
  foretell guess --gpu a100-40gb --batch-size 256 --json - summary.txt
  foretell guess --gpu a100-40gb --jobs queue.jsonl > answers.jsonl

exit codes: 0 it fits or is unclear; 3 it would run out of memory; 1 the script itself failed; 2 wrong usage,
            or no line of --jobs has an answer
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell guess [options] TARGET [ARGS...]"
    parser.epilog = _EPILOG
    parser.add_argument(
        "target", nargs=argparse.REMAINDER, metavar="TARGET",
        help="a script with its arguments, a model, a config, a summary or a description",
    )  # fmt: skip
    parser.add_argument("--gpu", metavar="NAME", help="a GPU from `foretell gpus` (default: a100-80gb)")
    parser.add_argument("--context", metavar="SIZE", help="memory of an empty CUDA process (default: estimated)")
    parser.add_argument("--batch-size", metavar="N", type=int, help="for models, configs and summaries (default: 1)")
    parser.add_argument("--input-shape", metavar="C,H,W", help="of one sample, for models (default: the model's own)")
    parser.add_argument("--length", metavar="N", type=int, help="tokens of a sample, for configs (default: 128)")
    parser.add_argument("--optimizer", metavar="NAME", help="as in torch.optim, for models (default: Adam)")
    parser.add_argument(
        "--jobs", metavar="FILE", help="many described jobs, one JSON object a line; - for standard input"
    )
    parser.add_argument("--model", metavar="FILE", type=Path, help="a model of `foretell train` (default: built in)")
    parser.add_argument("--then-run", action="store_true", help="run a script in full if the guess is unclear")
    parser.add_argument("--json", metavar="FILE", help="write the guess as JSON; - for standard output")


def execute(options: argparse.Namespace) -> int:
    from foretell import api, gpus
    from foretell.cli.files import check_targets
    from foretell.guessing import answer
    from foretell.learn import estimator
    from foretell.units import parse_bytes

    check_targets({"--json": options.json})
    gpu = gpus.find(options.gpu or api.DEFAULT_GPU)
    context = None if options.context is None else parse_bytes(options.context)
    model = estimator.read(options.model) if options.model else estimator.shipped()
    if options.jobs is not None:
        return _many(options, gpu, context, model)
    if not options.target:
        raise UsageError("nothing to guess. Give a script, a model by name, a config or a summary; see --help.")
    features = _described(options, gpu)
    guessed = answer(features, gpu, context_bytes=context, model=model)
    _show(guessed, options)
    if options.then_run and not guessed.is_clear:
        return _run(options, gpu)
    return 3 if guessed.decision == "oom" else 0


def _described(options: argparse.Namespace, gpu: Gpu) -> JobFeatures:
    from foretell import api
    from foretell.guessing.functions import describe_script, describe_text

    words = options.target[1:] if options.target[:1] == ["--"] else options.target
    if _is_command(words):
        given = [name for name in ("batch_size", "input_shape", "length", "optimizer") if getattr(options, name)]
        if given:
            name = given[0].replace("_", "-")
            raise UsageError(f"--{name} is for models, configs and summaries; a script takes its arguments after it.")
        return describe_script(api.make_job(words, gpu=gpu))
    if len(words) > 1:
        raise UsageError(f"{' '.join(words[1:])}: unexpected after {words[0]}; options go before it.")
    if options.then_run:
        raise UsageError(f"--then-run needs a training script, and {words[0]} is none.")
    for name in ("batch_size", "length"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(options, name)}: must be 1 or more.")
    return describe_text(
        words[0],
        gpu,
        batch_size=options.batch_size,
        input_shape=_shape(options.input_shape),
        length=options.length,
        optimizer=options.optimizer,
    )


def _is_command(words: list[str]) -> bool:
    return words[0] in ("-m", "python", "torchrun", "accelerate") or words[0].endswith((".py", ".pyz"))


def _shape(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--input-shape {text}: must be numbers, for example 3,224,224.")
    return [int(part) for part in parts]


def _show(guessed: GuessedJob, options: argparse.Namespace) -> None:
    from foretell.cli.files import write

    if options.json and options.json != "-":
        write(Path(options.json), guessed.to_json() + "\n")
    with ignore_broken_pipe():
        if options.json == "-":
            print(guessed.to_json())
        else:
            print("\n".join(text_of(guessed)))


def text_of(guessed: GuessedJob) -> Iterator[str]:
    from foretell.units import GIB, format_bytes

    verdicts = {
        "fits": f"fits on {guessed.gpu}",
        "oom": f"would run out of memory on {guessed.gpu}",
        "unclear": f"unclear on {guessed.gpu}: its limit lies within the interval",
    }
    low, high = format_bytes(guessed.device_low_bytes), format_bytes(guessed.device_high_bytes)
    yield f"Guess: {verdicts[guessed.decision]} ({format_bytes(guessed.total_bytes)})"
    yield f"  device memory    {format_bytes(guessed.device_bytes)}   95 % interval {low} to {high}"
    yield f"  upper bound      {format_bytes(guessed.bound_bytes)}   its size class is too low for 2 % of jobs"
    yield (
        f"  size class       {guessed.class_low_bytes // GIB} to {guessed.class_high_bytes // GIB} GiB"
        f"   ({guessed.family}, reserved {format_bytes(guessed.reserved_bytes)})"
    )
    if guessed.speed is not None:
        speed = guessed.speed
        low, high = _milliseconds(speed.step_low_ms), _milliseconds(speed.step_high_ms)
        yield f"  step time        {_milliseconds(speed.step_ms)}   95 % interval {low} to {high}, without loading data"
        gract = f"GRACT {speed.gract:.0%} ({speed.gract_low:.0%} to {speed.gract_high:.0%})"
        yield f"  utilization      {gract}, SMACT {speed.smact:.0%} ({speed.smact_low:.0%} to {speed.smact_high:.0%})"
    for note in guessed.notes:
        yield f"  ! {note}"
    if guessed.decision == "unclear" and guessed.source == "script":
        yield "  `foretell run` gives a clear answer; --then-run starts it at once"


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value:,.0f} ms"


def _run(options: argparse.Namespace, gpu: Gpu) -> int:
    from foretell import api
    from foretell.cli.show import show_text

    say("unclear; running the script on a virtual GPU")
    words = options.target[1:] if options.target[:1] == ["--"] else options.target
    estimate = api.run(api.make_job(words, gpu=gpu, context=options.context)).estimate
    show_text(estimate, is_json=options.json == "-")
    return 3 if estimate.verdict == "oom" else 0


def _many(options: argparse.Namespace, gpu: Gpu, context: int | None, model: Learned) -> int:
    """A line that cannot be answered gets one with `error`: the others must not wait for it."""
    from foretell.errors import ForetellError
    from foretell.guessing import answer, answer_all
    from foretell.guessing.functions import read_description
    from foretell.plain import parse_json

    if options.target or options.then_run:
        raise UsageError("--jobs reads all jobs from its file: remove the target and --then-run.")
    if options.jobs == "-":
        lines = sys.stdin.read().splitlines()
    else:
        try:
            lines = Path(options.jobs).read_text("utf-8", errors="replace").splitlines()
        except OSError as error:
            raise UsageError(f"--jobs {options.jobs}: {error.strerror}.") from None
    found: list[JobFeatures | str] = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(read_description(parse_json(line), where=f"line {number}"))
        except ForetellError as error:
            found.append(str(error))
        except ValueError as error:
            found.append(f"line {number}: not JSON: {error}.")
    jobs = [each for each in found if not isinstance(each, str)]
    try:
        answers = iter(answer_all(jobs, gpu, context_bytes=context, model=model))
    except UsageError:  # one of them: find out which
        answers = iter(())
    num_failed = 0
    with ignore_broken_pipe():
        for each in found:
            try:
                if isinstance(each, str):
                    raise UsageError(each)
                guessed = next(answers, None) or answer(each, gpu, context_bytes=context, model=model)
                print(guessed.to_json())
            except UsageError as error:
                num_failed += 1
                print(json.dumps({"error": str(error)}))
    if num_failed:
        say(f'{num_failed} of {len(found)} lines have no answer; "error" says why.')
    return UsageError.exit_code if found and num_failed == len(found) else 0
