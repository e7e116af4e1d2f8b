"""Runs one script of the table in a working folder of its own, through `foretell run`, and reads what that left."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.real_scripts import data
from benchmarks.real_scripts.script import Result, Script

from foretell.runs import Program, Warm, Watch, run_program

HERE = Path(__file__).resolve().parent
STAND_INS = HERE / "standins"
CODE = (HERE,)
"""What a result depends on beside foretell."""
TIMEOUT_SECONDS = 120
_GIVE_UP_SECONDS = 2 * TIMEOUT_SECONDS
_SAYS = re.compile(rb"max_memory_allocated: (\d+)")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def cache_folder() -> Path:
    """Outside of the checkout: the data and the working folders."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "foretell" / "real-scripts"


def work(script: Script, warm: Warm) -> Result:
    """For `Pool.map`. Each script has a process of its own, as for its users: a warm one could hide faults."""
    del warm
    folder = cache_folder() / script.name
    folder.mkdir(parents=True, exist_ok=True)
    for each in script.data:
        data.ensure(each, cache_folder() / "data")
        link = folder / each
        if not link.is_symlink():
            link.symlink_to(cache_folder() / "data" / each)
    estimate, output = folder / "estimate.json", folder / "output.txt"
    estimate.unlink(missing_ok=True)
    program = Program(
        argv=(*_foretell(), "--gpu", script.gpu, "--json", str(estimate), "--timeout", str(TIMEOUT_SECONDS), "--",
              *words_of(script.command)),
        environment={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120",
                     **script.environment},
        cwd=folder,
        stdout=output,
        stderr=output,
        timeout_seconds=_GIVE_UP_SECONDS,
    )  # fmt: skip
    ended = run_program(program, Watch(folder))
    document = json.loads(estimate.read_text()) if estimate.exists() else None
    return _result(script, ended.exit_status, ended.seconds, document, output.read_bytes())


def words_of(command: str) -> list[str]:
    """The command, with the stand-ins by their full path."""
    return [str(STAND_INS / word) if (STAND_INS / word).is_file() else word for word in command.split()]


def _foretell() -> tuple[str, ...]:
    return (sys.executable, "-m", "foretell", "run", "--quiet")


def _result(script: Script, code: int, seconds: float, estimate: dict[str, Any] | None, output: bytes) -> Result:
    if estimate is None:
        return Result(name=script.name, exit_code=code, seconds=seconds, message=_message(output))
    peak = estimate["peak"]
    said = _SAYS.findall(output)
    return Result(
        name=script.name,
        exit_code=code,
        seconds=seconds,
        verdict=estimate["verdict"],
        num_steps=len(estimate["steps"]),
        allocated_bytes=peak["allocated_bytes"],
        reserved_bytes=peak["reserved_bytes"],
        device_bytes=peak["device_bytes"],
        said_bytes=int(said[-1]) if said else None,
        message=_message(output) if code else "",
        caveats=tuple(estimate["caveats"]),
    )


def _message(output: bytes) -> str:
    """foretell's own last words, or what the program printed last."""
    lines = [line.strip() for line in _ANSI.sub("", output.decode(errors="replace")).splitlines() if line.strip()]
    ours = [number for number, line in enumerate(lines) if line.startswith("foretell: ")]
    return " ".join(lines[ours[-1] :] if ours else lines[-1:]).removeprefix("foretell: ")[:400]
