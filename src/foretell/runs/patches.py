"""Lists the functions foretell replaces in the process it observes."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from foretell.errors import UnsupportedError
from foretell.jobs import Job
from foretell.records import Gpu
from foretell.runs.environment import child_environment

_SCRIPT = Path(__file__).parent.parent / "inside" / "start" / "list_patches.py"
_WATCHED = ("shutil", "sqlite3", "safetensors")
"""Lightweight modules, in addition to torch, that are patched on import."""
_TIMEOUT_SECONDS = 300.0


def list_patches(python: str, gpu: Gpu) -> list[dict[str, str]]:
    """Start a process with all hooks and list its patches: `what` is replaced, `by` which module. Patches of trackers,
    hubs and trainers, made when a script imports them, are not included."""
    with tempfile.TemporaryDirectory(prefix="foretell-patches-") as folder:
        variables = child_environment(Job(command=(str(_SCRIPT),), gpu=gpu), Path(folder))
        options = variables.pop("FORETELL_CAPTURE")  # otherwise the hooks would be installed before the script starts
        try:
            process = subprocess.run(
                [python, str(_SCRIPT), options, *_WATCHED],
                env=variables, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UnsupportedError(f"the hooks were not installed within {_TIMEOUT_SECONDS:.0f} seconds.") from None
    if process.returncode != 0:
        raise UnsupportedError(f"the hooks could not be installed:\n{process.stderr.strip()[-2000:]}")
    listed: list[dict[str, str]] = json.loads(process.stdout.splitlines()[-1])
    return listed
