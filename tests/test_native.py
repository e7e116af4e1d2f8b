"""The C tests of the virtual GPU, built with the sanitizers, as part of the suite."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent / "native"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here; the native tests need one")
def test_every_native_rule_holds_under_the_address_sanitizer(tmp_path: Path) -> None:
    run = subprocess.run(
        ["make", "-s", "-C", str(NATIVE), f"OUT={tmp_path}", "run"], capture_output=True, text=True, errors="replace"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 failures" in run.stdout
    assert "BROKEN" not in run.stdout
    assert run.stdout.count("ok     ") >= 15
