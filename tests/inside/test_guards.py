"""What cannot be estimated is refused at once, with what to do."""

from __future__ import annotations

from pathlib import Path

from .conftest import Run

DISTRIBUTED = """
    import sys
    import torch.distributed as dist
    try:
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=int(sys.argv[2]))
    except BaseException:
        print("caught")
    print(dist.get_world_size())
"""


def test_one_rank_passes(capture: Run, tmp_path: Path) -> None:
    assert capture(DISTRIBUTED, str(tmp_path), "1").check().said == ["1"]


def test_a_card_without_kernels_is_refused_when_cuda_starts(capture: Run) -> None:
    captured = capture(
        """
        import torch
        torch._C._cuda_getDeviceCount()
        torch.cuda.get_device_capability = lambda device=None: (3, 5)
        torch.zeros(3).cuda()
        print("never")
        """
    ).check(2)
    assert captured.stdout == ""
    assert "compute capability 3.5" in captured.one("unsupported")["what"]
    assert "an older one" in captured.one("unsupported")["hint"]
