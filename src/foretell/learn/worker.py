"""A process on the virtual GPU that describes and labels many jobs, one after another.

Lines of JSON come in (`{"draw": ...}` or `{"script": ..., "arguments": [...]}`) and go out, one for one, after a first
line that says `ready`. A label is the reserved memory of a few steps. It is to the byte that of a process of its own,
because what a job leaves is cleared: garbage, cuBLAS workspaces, cached blocks. After an out-of-memory error or a crash
the caller starts another one.

With `--fresh`, each job has a process of its own: a fork of one that has imported everything and never used the GPU.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from foretell.inside.describe import Catcher, Described
from foretell.learn.draws import Draw
from foretell.learn.jobs import train, train_named, without_initialization
from foretell.plain import from_plain


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what jobs print does not mix with the answers
    sys.modules["deepspeed"] = None  # type: ignore[assignment]  # transformers imports it, which takes seconds
    is_fresh = "--fresh" in sys.argv[1:]
    if not is_fresh:
        _start()
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        if is_fresh and (child := os.fork()):
            _, status = os.waitpid(child, 0)
            if status:
                answers.write(json.dumps({"problem": f"the process ended with status {status}"}) + "\n")
                answers.flush()
            continue
        if is_fresh:
            _start()
        question = json.loads(line)
        started = time.process_time()
        try:
            with without_initialization():
                answer = _answer(question)
        except Exception as error:
            answer = {"problem": f"{type(error).__name__}: {str(error)[:300]}"}
        answer["seconds"] = time.process_time() - started
        if not is_fresh:
            _clear()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if is_fresh:
            os._exit(0)


def _start() -> None:
    torch.zeros(1, device="cuda")
    _load_libraries()
    _describe_on_the_cpu()
    _clear()  # a job allocates its own cuBLAS workspace when it first needs one
    gc.freeze()


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    if "draw" in question:
        return _label(question["draw"], describes=question.get("describes", True))
    if "script" in question:
        return _describe(question)
    return _describe_model(question)


def _load_libraries() -> None:
    """cuBLAS and cuDNN once, so that no job's first call is charged with them."""
    weight = torch.zeros(8, 8, device="cuda")
    weight @ weight


def _describe_on_the_cpu() -> None:
    """The first description of a process keeps its model for good (torch remembers something of the first call under a
    dispatch mode). On the card it would be part of every later label."""
    with Catcher(lambda description: None):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2))
        torch.optim.Adam(model.parameters())
        model(torch.zeros(1, 3, 4, 4)).sum().backward()


def _label(given: Any, *, describes: bool) -> dict[str, Any]:
    """The job runs twice: a pass that is described frees some tensors later, which moves the peak by a few MiB."""
    draw = from_plain(Draw, given)
    answer = _caught(partial(train, draw)) if describes else {}
    _clear()
    train(draw)
    torch.cuda.synchronize()
    return {**answer, "reserved_bytes": torch.cuda.max_memory_reserved()}


def _describe(question: dict[str, Any]) -> dict[str, Any]:
    """The job of a training script of foretell's own, up to its first backward pass."""
    before = sys.argv[:]
    sys.argv[:] = [question["script"], *question["arguments"]]
    try:
        return _caught(lambda: runpy.run_path(question["script"], run_name="__main__"))
    finally:
        sys.argv[:] = before


def _caught(train: Callable[[], object]) -> dict[str, Any]:
    found: list[Any] = []

    def caught(description: Any) -> None:
        found.append(description)
        raise Described

    with contextlib.suppress(Described), Catcher(caught):
        train()
    return {"features": found[0]} if found else {"problem": "no backward pass was seen"}


def _describe_model(question: dict[str, Any]) -> dict[str, Any]:
    """A model by name, or of a config, up to its first backward pass."""
    return _caught(lambda: train_named(question))


def _clear() -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.clear_autocast_cache()


if __name__ == "__main__":
    main()
