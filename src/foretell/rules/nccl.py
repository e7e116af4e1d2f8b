"""NCCL's buffers on a card: channels times connections times the buffers of each.

Sizes of buffers as in NCCL's sources (2.18 to 2.30, x86): a receiving end has LL (512 KiB), LL128 (4,915,200 bytes)
and Simple (NCCL_BUFFSIZE), rounded up to 2 MiB; a sending end 2 MiB. Where peers are read directly (A100), the
Simple buffer lies at the sending end. A ring has one end of each; with three ranks or more a tree adds a receiving
one. A shared network buffer has 16 chunks for each channel that is used from peer to peer.

The number of channels follows from the topology, which is not known here: those of a machine with NVLink for cards of
data centers, and two for others. 24 (A100) and 64 (B300) make public figures come out exactly: 544 and 688 MiB for two
and more ranks on A100 (nccl#964), 536,870,912 bytes for the shared buffer on B300 (nccl#2363). The others are guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..records import Gpu
from ..units import MIB

_LL_BYTES = 8 * 512 * 8 * 16
_LL128_BYTES = 120 * 640 * 8 * 8
_SIMPLE_BYTES = 4 * MIB
_ROUNDING = 2 * MIB
_NUM_CHUNKS = 16
_NVLINK_CHUNK, _OTHER_CHUNK = 512 << 10, 128 << 10
_NVLINK_CHANNELS = {(7, 0): 12, (8, 0): 24, (9, 0): 32, (10, 0): 64, (10, 3): 64}
_OTHER_CHANNELS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclBytes:
    """What a communicator takes when it first connects, on one card."""

    num_channels: int
    pair_bytes: int
    """Ring and shared buffer of two ranks."""
    ring_bytes: int
    """Ring, tree and shared buffer of three ranks or more."""
    send_bytes: int
    """To one peer."""
    receive_bytes: int
    """From one peer."""
    shared_bytes: int
    """Of a communicator that only sends and receives."""


def nccl_bytes(gpu: Gpu, variables: Mapping[str, str] | None = None) -> NcclBytes:
    """`variables`: those of the job; NCCL reads NCCL_BUFFSIZE, NCCL_MAX_NCHANNELS and NCCL_MIN_NCHANNELS."""
    variables = variables or {}
    has_nvlink = gpu.compute_capability in _NVLINK_CHANNELS
    channels = _NVLINK_CHANNELS.get(gpu.compute_capability, _OTHER_CHANNELS)
    channels = max(_number(variables, "NCCL_MIN_NCHANNELS", 1), channels)
    channels = min(_number(variables, "NCCL_MAX_NCHANNELS", channels), channels)
    simple = _number(variables, "NCCL_BUFFSIZE", _SIMPLE_BYTES)
    is_read_directly = gpu.compute_capability == (8, 0)
    receive = _rounded(_LL_BYTES + _LL128_BYTES + (0 if is_read_directly else simple))
    send = _rounded(_ROUNDING + (simple if is_read_directly else 0))
    peer_channels = 1 << (channels - 1).bit_length()
    shared = peer_channels * _NUM_CHUNKS * (_NVLINK_CHUNK if has_nvlink else _OTHER_CHUNK)
    return NcclBytes(
        num_channels=channels,
        pair_bytes=channels * (receive + send) + shared,
        ring_bytes=channels * (2 * receive + send) + shared,
        send_bytes=peer_channels * send,
        receive_bytes=peer_channels * receive,
        shared_bytes=shared,
    )


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    word = variables.get(name, "")
    return int(word) if word.isdecimal() and int(word) > 0 else default


def _rounded(size: int) -> int:
    return -(-size // _ROUNDING) * _ROUNDING
