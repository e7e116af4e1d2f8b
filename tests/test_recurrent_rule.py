"""What cuDNN's recurrent nets keep and need: the virtual GPU (native/libraries/cudnn_rnn.c) and rules/recurrent.py say
the same, and not less than what was seen of cuDNN."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from foretell import gpus
from foretell.records import LibraryBytes
from foretell.rules.recurrent import Kind, recurrent_reserve, recurrent_workspace
from foretell.virtual.environment import environment, library_paths

MODES: dict[Kind, int] = {"rnn": 1, "lstm": 2, "gru": 3}
ELEMENTS = {4: 0, 8: 1, 2: 2}

ASKING = """
import ctypes, json, sys
from ctypes import byref, c_float, c_size_t, c_void_p

cuda = ctypes.CDLL(sys.argv[1])
net, data, dropout = c_void_p(), c_void_p(), c_void_p()
cuda.cudnnCreateRNNDescriptor(byref(net))
cuda.cudnnCreateRNNDataDescriptor(byref(data))
cuda.cudnnCreateDropoutDescriptor(byref(dropout))
for line in sys.stdin:
    mode, dtype, steps, batch, hidden, projection, layers, directions, drops = json.loads(line)
    cuda.cudnnSetDropoutDescriptor(dropout, None, c_float(0.5 if drops else 0.0), None, c_size_t(0), None)
    cuda.cudnnSetRNNDescriptor_v8(
        net, 0, mode, 2, directions - 1, 0, dtype, dtype, 0, 64, hidden, projection or hidden, layers, dropout, 0
    )
    cuda.cudnnSetRNNDataDescriptor(data, dtype, 0, steps, batch, 64, None, None)
    workspace, reserve = c_size_t(), c_size_t()
    assert cuda.cudnnGetRNNTempSpaceSizes(None, net, 1, data, byref(workspace), byref(reserve)) == 0
    print(workspace.value, reserve.value)
"""


class Net(NamedTuple):
    kind: Kind
    element_bytes: int
    steps: int
    batch: int
    hidden: int
    projection: int
    layers: int
    directions: int
    has_dropout: bool


def in_c(nets: list[Net]) -> list[tuple[int, int]]:
    nothing = LibraryBytes(cublas=0, cudnn=0, nccl=0)
    words = [(MODES[net.kind], ELEMENTS[net.element_bytes], *net[2:]) for net in nets]
    run = subprocess.run(
        [sys.executable, "-c", ASKING, str(library_paths().cuda)],
        input="".join(f"{json.dumps(each)}\n" for each in words),
        env=environment(gpus.find("rtx-3060"), context_bytes=0, libraries=nothing, log_prefix="", base={}),
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [(int(line.split()[0]), int(line.split()[1])) for line in run.stdout.splitlines()]


def in_python(net: Net) -> tuple[int, int]:
    samples = net.steps * net.batch
    workspace = recurrent_workspace(
        net.kind, samples=samples, hidden=net.hidden, directions=net.directions, element_bytes=net.element_bytes
    )
    return workspace, recurrent_reserve(
        net.kind, samples=samples, hidden=net.hidden, projection=net.projection, layers=net.layers,
        directions=net.directions, has_dropout=net.has_dropout, element_bytes=net.element_bytes,
    )  # fmt: skip


def test_both_rules_agree() -> None:
    nets = [
        Net(kind, element_bytes, 7, 5, 48, projection if kind == "lstm" else 0, layers, directions, has_dropout)
        for kind, element_bytes, projection, layers, directions, has_dropout in itertools.product(
            MODES, ELEMENTS, (0, 16), (1, 3), (1, 2), (False, True)
        )
    ]
    assert in_c(nets) == [in_python(net) for net in nets]


@pytest.mark.parametrize(("kind", "reported"), [("lstm", 736_000_000), ("gru", 864_000_000)])
def test_the_reserve_space_is_that_seen_of_cudnn(kind: Kind, reported: int) -> None:
    """github.com/pytorch/pytorch/issues/2895, cuDNN of 2017: four layers of 320. Steps times batch follow from it."""
    _, reserve = in_python(Net(kind, 4, 250, 100, 320, 0, 4, 1, False))
    assert reported <= reserve <= 1.05 * reported
