"""Runs one script of the table in a working folder of its own, through `foretell run`, and reads what that left."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.real_scripts import data
from benchmarks.real_scripts.script import Result, Script

from foretell.runs import Program, Warm, Watch, run_program

HERE = Path(__file__).resolve().parent
STAND_INS = HERE / "standins"
FOLDER = HERE.parents[1] / "build" / "real-scripts-runs"
"""The data and the working folders. Not in ~/.cache, which scripts may write to."""
CODE = (HERE,)
"""What a result depends on beside foretell."""
_SAYS = re.compile(rb"max_memory_allocated: (\d+)")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def work(script: Script, warm: Warm) -> Result:
    """For `Pool.map`. Each script has a process of its own, as for its users: a warm one could hide faults."""
    del warm
    folder = FOLDER / script.name
    folder.mkdir(parents=True, exist_ok=True)
    for each in script.data:
        data.ensure(each, FOLDER / "data")
        link = folder / each
        if not link.is_symlink():
            link.symlink_to(FOLDER / "data" / each)
    estimate, output = folder / "estimate.json", folder / "output.txt"
    estimate.unlink(missing_ok=True)
    program = Program(
        argv=(*_foretell(), "--gpu", script.gpu, "--json", str(estimate),
              "--timeout", str(script.timeout_seconds), "--", *words_of(script.command)),
        environment={**os.environ, "PATH": _search_path(), "COLUMNS": "120", **script.environment},
        cwd=folder,
        stdout=output,
        stderr=output,
        timeout_seconds=2 * script.timeout_seconds,
    )  # fmt: skip
    before = _files(folder)
    ended = run_program(program, Watch(folder))
    changed = sorted(str(path.relative_to(folder)) for path, _, _ in before ^ _files(folder))
    document = json.loads(estimate.read_text()) if estimate.exists() else None
    result = _result(script, ended.exit_status, ended.seconds, document, output.read_bytes())
    return replace(result, changed_files=tuple(dict.fromkeys(changed)))


def words_of(command: str) -> list[str]:
    """The command, with the stand-ins by their full path."""
    return [str(STAND_INS / word) if (STAND_INS / word).is_file() else word for word in command.split()]


def _files(folder: Path) -> set[tuple[Path, int, int]]:
    """All files a script could reach by a relative path, with their size and time, but foretell's own."""
    found = (Path(at) / name for at, _, names in os.walk(folder, followlinks=True) for name in names)
    kept = [path for path in found if path.parent != folder or path.name not in ("estimate.json", "output.txt")]
    return {(path, path.stat().st_size, path.stat().st_mtime_ns) for path in kept}


def _search_path() -> str:
    """Programs of this environment, then those of the stack below it."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    stack = Path(torch.origin).parents[4] / "bin"
    return os.pathsep.join((str(Path(sys.executable).parent), str(stack), os.environ["PATH"]))


def _foretell() -> tuple[str, ...]:
    return (sys.executable, "-m", "foretell", "run", "--quiet")


def _result(script: Script, code: int, seconds: float, estimate: dict[str, Any] | None, output: bytes) -> Result:
    if estimate is None:
        return Result(name=script.name, exit_code=code, seconds=seconds, message=_message(output))
    peak = estimate["peak"]
    return Result(
        name=script.name,
        exit_code=code,
        seconds=seconds,
        verdict=estimate["verdict"],
        num_steps=len(estimate["steps"]),
        allocated_bytes=peak["allocated_bytes"],
        reserved_bytes=peak["reserved_bytes"],
        device_bytes=peak["device_bytes"],
        said_bytes=said_bytes(output),
        needed_bytes=estimate["need"] and estimate["need"]["device_bytes"],
        ended_by=estimate["ended_by"] and estimate["ended_by"]["message"],
        caveats=tuple(estimate["caveats"]),
    )


def said_bytes(output: bytes) -> int | None:
    """What a stand-in prints as its last line."""
    said = _SAYS.findall(output)
    return int(said[-1]) if said else None


def _message(output: bytes) -> str:
    """foretell's own last words, or what the program printed last."""
    lines = [line.strip() for line in _ANSI.sub("", output.decode(errors="replace")).splitlines() if line.strip()]
    ours = [number for number, line in enumerate(lines) if line.startswith("foretell: ")]
    return " ".join(lines[ours[-1] :] if ours else lines[-1:]).removeprefix("foretell: ")[:400]
