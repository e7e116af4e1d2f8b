"""NCCL's buffers on a card, from what a communicator was used for: as in NCCL's sources, 2.18 to 2.30, on x86.

A connection between two GPUs takes memory at both ends, for each channel. Received data lies in three buffers: LL
(512 KiB), LL128 (4,915,200 bytes) and Simple (NCCL_BUFFSIZE), rounded up to 2 MiB together; a sending end takes 2 MiB.
Where peers are read directly (A100 over NVLink), the Simple buffer lies at the sending end. To another machine, both
ends have LL128 and Simple on the card, if the network reads it (GPUDirect), else nothing. What is sent to another
machine by ncclSend passes through a shared buffer of 16 chunks for each channel.

A ring has two neighbours. A tree is a chain in a machine, whose first GPU is part of a tree of machines. NVLS
(multicast over NVSwitch; Hopper and newer) has two buffers for each channel and GPU of the machine. Which of them an
all-reduce uses, NCCL decides by a model of their times; the limits here are those of that model in 2.30, to a power of
two. All else uses rings.

Since 2.22 connections are made when they are first used; before, or without memory of the driver's virtual memory API
(NCCL_CUMEM_ENABLE), all but those of ncclSend when the communicator is made, together with the shared buffer. With that
API, since 2.19, each small allocation takes 2 MiB: three for each channel.

How many channels there are follows from the topology: numbers that NCCL has printed on such machines. A communicator of
one GPU has as many as there can be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError
from ..records import Gpu
from ..units import MIB

Machine = Literal["nvlink", "pcie", "host"]
"""How GPUs of a machine reach each other. `host`: not directly, only through its memory."""
Network = Literal["ib", "ethernet"]
_MACHINES: dict[str, Machine] = {"nvlink": "nvlink", "pcie": "pcie", "host": "host"}
_NETWORKS: dict[str, Network] = {"ib": "ib", "ethernet": "ethernet"}
_LAZY_SINCE, _CUMEM_SINCE = (2, 22), (2, 19)
_ROUNDING = 2 * MIB
_NUM_STEPS = 8
_NUM_CHUNKS = 16
_PEER_BYTES = 608
"""What each channel keeps of each rank."""
_ALLOCATIONS_PER_CHANNEL, _OTHER_ALLOCATIONS = 3, 3
_NVLINK_CHANNELS = {(7, 0): 12, (8, 0): 24, (9, 0): 24, (10, 0): 32, (10, 3): 32}
"""In one machine: A100 as in nccl#964, H100 and B200 as their logs say, V100 a guess."""
_PCIE_CHANNELS = {2: 2}
_MOST_PCIE_CHANNELS = 4
_NET_CHANNELS = 16
"""Between machines with a network card for each of 8 GPUs."""
_ETHERNET_CHANNELS = 2
_NO_NVLINK = re.compile(r"PCI|NVL\b|TITAN", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """How the GPUs of a job are connected."""

    capability: tuple[int, int]
    machine: Machine
    network: Network

    @property
    def words(self) -> str:
        """As of `fabric_of`."""
        return f"{self.machine},{self.network}"


def fabric_of(gpu: Gpu, interconnect: str | None = None) -> Fabric:
    """That of machines with such cards, as far as `interconnect` (`nvlink,ib`) does not say it."""
    has_nvlink = gpu.compute_capability in _NVLINK_CHANNELS and not _NO_NVLINK.search(gpu.device_name)
    # Consumer cards cannot reach each other since the RTX 40 series; before, few could.
    machine: Machine = "nvlink" if has_nvlink else "host" if gpu.gpu_class == "consumer" else "pcie"
    network: Network = "ib" if has_nvlink else "ethernet"
    return described(gpu.compute_capability, interconnect or "", machine=machine, network=network)


def described(
    capability: tuple[int, int], words: str, *, machine: Machine = "pcie", network: Network = "ethernet"
) -> Fabric:
    given = [word.strip() for word in words.split(",") if word.strip()]
    machines = [word for word in given if word in _MACHINES]
    networks = [word for word in given if word in _NETWORKS]
    if len(machines) + len(networks) < len(given) or len(machines) > 1 or len(networks) > 1:
        raise UsageError(
            f"--interconnect {words}: must be nvlink, pcie or host (GPUs of a machine reach each other through its "
            "memory only), ib or ethernet (between machines), or one of each, for example nvlink,ib."
        )
    return Fabric(
        capability=capability,
        machine=_MACHINES[machines[0]] if machines else machine,
        network=_NETWORKS[networks[0]] if networks else network,
    )


Algorithm = Literal["ring", "tree", "nvls", "nvls_tree"]


@dataclass(frozen=True, slots=True)
class _Ends:
    """Of connections on one card."""

    received: int = 0
    sent: int = 0
    of_network: int = 0


class Buffers:
    """Of one communicator on one card, as they grow."""

    def __init__(
        self,
        fabric: Fabric,
        *,
        version: tuple[int, int],
        num_ranks: int,
        num_local: int,
        local_rank: int,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`num_local`: ranks of the communicator on this machine, the card's own being the `local_rank`th of them.
        `variables`: those of the job, some of which NCCL reads."""
        self._fabric = fabric
        self._version = version
        self._variables = variables or {}
        self._num_ranks = num_ranks
        self._num_local = num_local
        self._local_rank = local_rank
        self._num_machines = -(-num_ranks // num_local)
        self._used: set[Algorithm] = set()
        self._sends_to: set[int] = set()
        self._receives_from: set[int] = set()
        self._shared: set[str] = set()
        self.num_channels = self._channels()

    # --- when memory is taken -----------------------------------------------------------------------------------------

    def created(self) -> int:
        """Bytes taken when the communicator is made."""
        size = self._small_bytes()
        if not self._is_lazy:
            algorithms: list[Algorithm] = ["ring", "tree"] if self._num_ranks > 1 else []
            if self._has_nvls:
                algorithms += ["nvls"] if self._num_machines == 1 else ["nvls", "nvls_tree"]
            size += sum(map(self._connected, algorithms)) + self._shared_bytes("send")
        return size

    def collective(self, operation: str, num_bytes: int) -> int:
        """Bytes taken by a call, in the words of the log: `all_reduce`. `num_bytes`: of the whole of its data."""
        return self._connected(self.algorithm(operation, num_bytes)) if self._num_ranks > 1 else 0

    def sent(self, peer: int, *, is_local: bool) -> int:
        """Bytes taken by the first ncclSend to a peer."""
        if peer in self._sends_to:
            return 0
        self._sends_to.add(peer)
        if not is_local:
            return self._shared_bytes("send") if self._has_gpudirect else 0
        return 0 if self._is_through_host else self._channels_per_peer * self._send_end

    def received(self, peer: int, *, is_local: bool) -> int:
        if peer in self._receives_from:
            return 0
        self._receives_from.add(peer)
        if not is_local:
            return self._shared_bytes("receive") if self._has_gpudirect else 0
        return 0 if self._is_through_host else self._channels_per_peer * self._receive_end

    def algorithm(self, operation: str, num_bytes: int) -> Algorithm:
        """Which one NCCL prefers for so many bytes."""
        allowed = self._allowed()
        if operation != "all_reduce":
            return "ring"
        if self._num_machines == 1:
            is_large = num_bytes >= (4 << 20 if self._fabric.capability >= (10, 0) else 2 << 20)
            preferred: Algorithm = "nvls" if self._has_nvls and is_large and self._num_local > 2 else "ring"
        else:
            is_small = num_bytes < self._most_by_tree()
            preferred = "tree" if is_small else "nvls_tree" if self._has_nvls else "ring"
        others: tuple[Algorithm, ...] = ("ring", "tree", "nvls", "nvls_tree")
        return next((each for each in (preferred, *others) if each.replace("_", "") in allowed), preferred)

    def _most_by_tree(self) -> int:
        """An all-reduce of several machines takes the tree below this."""
        if self._has_nvls:
            return min(32, 4 * self._num_machines.bit_length() - 4) << 20
        return 8 << 20 if self._num_machines == 2 else 32 << 20 if self._num_machines <= 4 else 512 << 20

    def _allowed(self) -> set[str]:
        """By NCCL_ALGO, in its forms `Ring,Tree`, `^NVLS` and `allreduce:ring`."""
        everything = {"ring", "tree", "nvls", "nvlstree"}
        text = self._variables.get("NCCL_ALGO", "").lower()
        for part in text.split(";"):
            function, colon, names = part.rpartition(":")
            if colon and function != "allreduce":
                continue
            words = {word.strip() for word in names.strip("^").split(",")} & everything
            if words:
                return everything - words if names.startswith("^") else words
        return everything

    # --- how much -----------------------------------------------------------------------------------------------------

    def _connected(self, algorithm: Algorithm) -> int:
        before = self._bytes_of(self._used)
        self._used.add(algorithm)
        if algorithm == "nvls_tree":
            self._used.add("nvls")
        return self._bytes_of(self._used) - before

    def _bytes_of(self, algorithms: set[Algorithm]) -> int:
        ends = self._ends(algorithms)
        size = 0 if self._is_through_host else ends.received * self._receive_end + ends.sent * self._send_end
        if self._has_gpudirect:
            size += ends.of_network * _rounded(self._ll128 + self._simple)
        return size + (self._nvls_bytes() if "nvls" in algorithms else 0)

    def _ends(self, algorithms: set[Algorithm]) -> _Ends:
        """Of rings and trees together: they share connections to the same neighbour."""
        received = sent = of_network = 0
        count = self._num_local
        num_above = 1 if self._num_machines == 2 else 2
        """Other machines next to this one in a tree of machines, on average."""
        for channel in range(self.num_channels):
            # Between machines, each channel enters a machine by another GPU.
            place = (self._local_rank - (channel if self._num_machines > 1 else 0)) % count
            sources: set[int] = set()
            targets: set[int] = set()
            if "ring" in algorithms and self._num_ranks > 1:
                if self._num_machines == 1:
                    sources.add((place - 1) % count)
                    targets.add((place + 1) % count)
                else:
                    sources |= {place - 1} if place > 0 else set()
                    targets |= {place + 1} if place < count - 1 else set()
                    of_network += (place == 0) + (place == count - 1)
            if "tree" in algorithms and self._num_ranks > 1:
                chain = {each for each in (place - 1, place + 1) if 0 <= each < count}
                sources |= chain
                targets |= chain
                if place == 0 and self._num_machines > 1:
                    of_network += 2 * num_above
            received += len(sources)
            sent += len(targets)
        if "nvls_tree" in algorithms:
            heads = sum(channel % count == self._local_rank for channel in range(self._nvls_channels))
            of_network += 2 * num_above * heads
        return _Ends(received, sent, of_network)

    def _nvls_bytes(self) -> int:
        chunk = self._number("NCCL_NVLS_CHUNKSIZE", 128 << 10)
        if self._version < (2, 21):
            each = self._simple + _ROUNDING
        else:
            each = chunk * _NUM_STEPS + (_ROUNDING if self._version < (2, 22) else 0)
        return _rounded(self._num_local * self._nvls_channels * 2 * each)

    def _shared_bytes(self, direction: str) -> int:
        """Of what passes between machines, in one direction; in one machine it is made and not used."""
        if direction in self._shared:
            return 0
        self._shared.add(direction)
        if self._num_machines > 1:
            chunk = self._number("NCCL_P2P_NET_CHUNKSIZE", 128 << 10)
        elif self._fabric.machine == "nvlink" or self._num_ranks == 1:
            chunk = self._number("NCCL_P2P_NVL_CHUNKSIZE", 512 << 10)
        else:
            chunk = self._number("NCCL_P2P_PCI_CHUNKSIZE", 128 << 10)
        return self._peer_channels * _NUM_CHUNKS * min(chunk, self._simple // _NUM_STEPS)

    def _small_bytes(self) -> int:
        """What each channel and the communicator itself keep, apart from buffers."""
        channels = max(self.num_channels, self._peer_channels)
        nvls = self._nvls_channels + 1 if self._has_nvls else 0
        if not self._has_cumem:
            return channels * self._num_ranks * _PEER_BYTES // _ROUNDING * _ROUNDING
        peers = _rounded(self._num_ranks * _PEER_BYTES) - _ROUNDING
        return (channels * _ALLOCATIONS_PER_CHANNEL + nvls + _OTHER_ALLOCATIONS) * _ROUNDING + channels * peers

    # --- numbers of channels ------------------------------------------------------------------------------------------

    def _channels(self) -> int:
        most = 64 if self._version >= (2, 25) else 32
        if self._num_ranks == 1:
            found = most
        elif self._num_machines == 1:
            found = _PCIE_CHANNELS.get(self._num_local, _MOST_PCIE_CHANNELS)
            if self._fabric.machine == "nvlink":
                found = _NVLINK_CHANNELS.get(self._fabric.capability, found)
        elif self._fabric.network == "ethernet":
            found = _ETHERNET_CHANNELS
        else:
            is_doubled = self._fabric.capability >= (9, 0) and self._num_local < 8
            found = min(_NET_CHANNELS, self._num_local * (4 if is_doubled else 2))
        for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"):
            found = min(found, self._number(name, most))
        for name in ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"):
            found = max(found, min(most, self._number(name, 1)))
        return found

    @property
    def _peer_channels(self) -> int:
        """All that ncclSend and ncclRecv may use."""
        found = min(self.num_channels, self._number("NCCL_MAX_P2P_NCHANNELS", 64))
        return _power_of_two(max(found, self._number("NCCL_MIN_P2P_NCHANNELS", 1)))

    @property
    def _channels_per_peer(self) -> int:
        """Of these, those to one peer: as many as to the peer that has the fewest."""
        found = self._peer_channels
        if self._fabric.machine != "nvlink":
            found = min(found, 2)
        if self._num_machines > 1:
            found = min(found, self._number("NCCL_NCHANNELS_PER_NET_PEER", 4 if self._version >= (2, 29) else 2))
        return _power_of_two(found)

    @property
    def _nvls_channels(self) -> int:
        found = 16
        if self._fabric.capability >= (10, 0):
            found = 24 if self._num_machines == 1 and self._version >= (2, 27) else 32
        found = self._number("NCCL_NVLS_NCHANNELS", found)
        return max(self._number("NCCL_MIN_CTAS", 1), min(found, self._number("NCCL_MAX_CTAS", 64)))

    # --- properties of the machine and of NCCL ------------------------------------------------------------------------

    @property
    def _has_cumem(self) -> bool:
        default = self._version >= _CUMEM_SINCE
        return self._variables.get("NCCL_CUMEM_ENABLE", "1" if default else "0") not in ("0", "")

    @property
    def _is_lazy(self) -> bool:
        is_wanted = self._variables.get("NCCL_RUNTIME_CONNECT", "1") != "0"
        return self._version >= _LAZY_SINCE and self._has_cumem and is_wanted

    @property
    def _is_through_host(self) -> bool:
        return self._fabric.machine == "host" or self._variables.get("NCCL_P2P_DISABLE") == "1"

    @property
    def _has_gpudirect(self) -> bool:
        return self._fabric.network == "ib" and self._variables.get("NCCL_NET_GDR_LEVEL", "") not in ("0", "LOC")

    @property
    def _has_nvls(self) -> bool:
        is_there = self._fabric.machine == "nvlink" and self._fabric.capability >= (9, 0)
        least = 2 if self._version >= (2, 28) else 3
        is_wanted = self._variables.get("NCCL_NVLS_ENABLE", "2") != "0" and not self._is_through_host
        return is_there and is_wanted and self._num_local >= least

    @property
    def _simple(self) -> int:
        return self._number("NCCL_BUFFSIZE", 4 * MIB)

    @property
    def _ll128(self) -> int:
        return self._number("NCCL_LL128_BUFFSIZE", 120 * 640 * 8 * 8)

    @property
    def _receive_end(self) -> int:
        ll = self._number("NCCL_LL_BUFFSIZE", 8 * 512 * 8 * 16)
        return _rounded(ll + self._ll128 + (0 if self._is_read_directly else self._simple))

    @property
    def _send_end(self) -> int:
        return _rounded(_ROUNDING + (self._simple if self._is_read_directly else 0))

    @property
    def _is_read_directly(self) -> bool:
        default = self._fabric.capability == (8, 0) and self._fabric.machine == "nvlink"
        return self._variables.get("NCCL_P2P_READ_ENABLE", "1" if default else "0") == "1"

    def _number(self, name: str, default: int) -> int:
        word = self._variables.get(name, "")
        return int(word) if word.isdecimal() and int(word) > 0 else default


def num_local_of(members: Sequence[int], rank: int, per_node: int) -> tuple[int, int]:
    """How many of the ranks are on the machine of this one, and which of them it is."""
    local = [each for each in members if each // per_node == rank // per_node]
    return len(local), local.index(rank)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _rounded(size: int) -> int:
    return -(-size // _ROUNDING) * _ROUNDING
