"""Every kind of card in the table is described so that torch and cuDNN plan for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell import api, gpus
from foretell.errors import UnsupportedError
from foretell.jobs import Job
from foretell.runs import Warm

CONVOLVE = """
import torch
x = torch.randn(16, 64, 56, 56, device="cuda", requires_grad=True)
w = torch.randn(128, 64, 3, 3, device="cuda", requires_grad=True)
for dtype in (torch.float32, torch.float16):
    with torch.autocast("cuda", dtype=torch.float16, enabled=dtype is torch.float16):
        torch.nn.functional.conv2d(x, w, padding=1).sum().backward()
print("cuDNN", torch.backends.cudnn.version())
"""
CAPABILITIES = sorted({gpu.compute_capability for gpu in gpus.all_gpus()})


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda pair: f"sm{pair[0]}{pair[1]}")
def test_convolutions_are_planned_for_it(capability: tuple[int, int], warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "convolve.py"
    script.write_text(CONVOLVE)
    alike = [gpu for gpu in gpus.all_gpus() if gpu.compute_capability == capability]
    smallest, largest = (choose(alike, key=lambda gpu: gpu.num_sms) for choose in (min, max))
    for gpu in {gpu.name: gpu for gpu in (smallest, largest)}.values():
        folder = tmp_path / gpu.name
        folder.mkdir()
        try:
            estimate = api.run(Job(command=(str(script),), gpu=gpu), directory=folder, warm=warm).estimate
        except UnsupportedError as error:
            if "has no kernels for" not in str(error):
                raise
            pytest.skip(f"this torch is not made for {gpu.name}")
        version = int((folder / "output.txt").read_text().split("cuDNN ")[1])
        is_ruled = any("did not plan without a GPU" in caveat for caveat in estimate.caveats)
        assert is_ruled == (version < 90800), gpu.name
