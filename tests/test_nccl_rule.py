"""What NCCL's buffers take, against figures that users of real clusters have published."""

from __future__ import annotations

import pytest

from foretell import gpus
from foretell.rules.nccl import nccl_bytes
from foretell.units import MIB


def test_the_public_figures_come_out() -> None:
    """nccl#964: 544 MiB for two A100, 688 for three or four; nccl#2363: the shared buffer of a B300, here of a B200;
    nccl#1685: blocks of 10 and 2 MiB for each of 32 channels on H100."""
    a100, h100, b200 = (nccl_bytes(gpus.find(name)) for name in ("a100-80gb", "h100-sxm", "b200"))
    assert (a100.pair_bytes, a100.ring_bytes) == (544 * MIB, 688 * MIB)
    assert b200.shared_bytes == 536_870_912
    assert (h100.receive_bytes, h100.send_bytes) == (32 * 10 * MIB, 32 * 2 * MIB)


@pytest.mark.parametrize(
    ("variables", "mib"),
    [
        ({}, 2 * (10 + 2) + 4),
        ({"NCCL_MIN_NCHANNELS": "8"}, 8 * (10 + 2) + 16),
        ({"NCCL_MAX_NCHANNELS": "1"}, 1 * (10 + 2) + 2),
        ({"NCCL_BUFFSIZE": str(16 * MIB)}, 2 * (22 + 2) + 4),
        ({"NCCL_BUFFSIZE": "many"}, 2 * (10 + 2) + 4),
    ],
)
def test_the_variables_of_nccl_are_read(variables: dict[str, str], mib: int) -> None:
    assert nccl_bytes(gpus.find("rtx-4090"), variables).pair_bytes == mib * MIB
