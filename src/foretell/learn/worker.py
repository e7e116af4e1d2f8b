"""A process on the virtual GPU that describes and labels many jobs, one after another.

Lines of JSON come in (`{"draw": ...}` or `{"script": ..., "arguments": [...]}`) and go out, one for one. A label is the
reserved memory of a few steps. It is to the byte that of a process of its own, because what a job leaves is cleared:
garbage, cuBLAS workspaces, cached blocks. After an out-of-memory error or a crash the caller starts another one.
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
    torch.zeros(1, device="cuda")
    _load_libraries()
    _describe_on_the_cpu()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        question = json.loads(line)
        started = time.process_time()
        try:
            with without_initialization():
                answer = _answer(question)
        except Exception as error:
            answer = {"problem": f"{type(error).__name__}: {str(error)[:300]}"}
        answer["seconds"] = time.process_time() - started
        _clear()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


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
    draw = from_plain(Draw, given)
    descriptions: list[Any] = []
    with contextlib.ExitStack() as stack:
        if describes:
            stack.enter_context(Catcher(descriptions.append))
        train(draw)
    torch.cuda.synchronize()
    return {"features": descriptions[0] if descriptions else None, "reserved_bytes": torch.cuda.max_memory_reserved()}


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
