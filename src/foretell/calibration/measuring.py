"""Runs the measurement in a separate process, on a real card or, to try it out, on a virtual one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from foretell.calibration.profile import profile_of
from foretell.errors import UnsupportedError
from foretell.records import Gpu, LibraryBytes, Profile
from foretell.virtual import environment

_SCRIPT = Path(__file__).parent / "measure_card.py"


def measure(*, device: int = 0, virtual: tuple[Gpu, LibraryBytes] | None = None) -> Profile:
    with tempfile.TemporaryDirectory(prefix="foretell-calibrate-", ignore_cleanup_errors=True) as scratch:
        target = Path(scratch) / "found.json"
        variables = dict(os.environ)
        if virtual is not None:
            gpu, libraries = virtual
            variables |= environment(
                gpu, context_bytes=gpu.context_bytes, libraries=libraries, log_prefix=str(Path(scratch) / "native")
            )
        done = subprocess.run(
            [sys.executable, str(_SCRIPT), str(device), str(target)],
            env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0 or not target.exists():
            reason = "\n".join((done.stderr or done.stdout).strip().splitlines()[-3:])
            raise UnsupportedError(
                f"cannot measure the GPU. It takes a GPU, its driver and the CUDA build of torch in this environment; "
                f"--gpu NAME tries it on a virtual GPU. Output:\n{reason}"
            )
        return profile_of(json.loads(target.read_text("utf-8")))
