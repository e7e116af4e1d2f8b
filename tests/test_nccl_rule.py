"""What NCCL's buffers take, against figures that users of real clusters have published."""

from __future__ import annotations

import pytest

from foretell import gpus
from foretell.errors import UsageError
from foretell.rules.nccl import Buffers, fabric_of
from foretell.units import MIB


def buffers(
    gpu: str, version: tuple[int, int], num_ranks: int, *, local: int | None = None, rank: int = 0,
    interconnect: str | None = None, **variables: str,
) -> Buffers:  # fmt: skip
    return Buffers(
        fabric_of(gpus.find(gpu), interconnect), version=version, num_ranks=num_ranks, num_local=local or num_ranks,
        local_rank=rank, variables=variables,
    )  # fmt: skip


def all_to_all(found: Buffers, num_ranks: int) -> int:
    return sum(
        found.sent(peer, is_local=True) + found.received(peer, is_local=True) for peer in range(1, num_ranks)
    )  # fmt: skip


# --- public figures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_ranks", "mib"), [(2, 544), (3, 688), (4, 688)])
def test_a_first_rank_on_a100_takes_what_was_measured_in_nccl_964(num_ranks: int, mib: int) -> None:
    assert buffers("a100-80gb", (2, 18), num_ranks).created() == mib * MIB


def test_a_communicator_of_one_rank_allocates_what_was_measured_in_nccl_2363() -> None:
    """On a B300 with 2.28.9, where connections were not lazy; the card does not matter."""
    assert buffers("b200", (2, 28), 1, NCCL_CUMEM_ENABLE="0").created() == 536_870_912


def test_an_all_to_all_of_8_h100_takes_7_percent_less_than_in_nccl_1685() -> None:
    """Blocks of 10 and 2 MiB for each of 32 channels, as there; the total was 3.28 GB."""
    found = buffers("h100-sxm", (2, 26), 8)
    created, connected = found.created(), all_to_all(found, 8)
    assert connected == 7 * 32 * (10 + 2) * MIB
    assert 0.93 < (created + connected) / 3.28e9 < 0.94


@pytest.mark.parametrize(
    ("gpu", "mib"),
    [
        ("b200", 576),  # sglang#30908: 8 GB200, NCCL 2.30.4, "~576 MiB" of each of one and of two communicators
        ("h100-sxm", 480),  # vllm#46234: "~958 MiB" on 8 GPUs with tensor and expert parallelism, which are two
    ],
)
def test_a_communicator_of_8_gives_back_what_was_measured_with_nccl_comm_suspend(gpu: str, mib: int) -> None:
    """Of what is made with the communicator, that is three allocations for each channel; those of NVLS and of the
    communicator itself stay."""
    found = buffers(gpu, (2, 30), 8)
    num_staying = {"b200": 25, "h100-sxm": 17}[gpu] + 3
    assert found.created() - num_staying * 2 * MIB + found.collective("all_gather", 1 << 26) == mib * MIB


def test_a_communicator_of_one_rank_takes_less_than_was_measured_in_nccl_2366() -> None:
    """484 MiB on an RTX 3090, with NCCL's code; 996 MiB without lazy connections, which is the shared buffer more."""
    lazy, at_once = buffers("rtx-3090", (2, 28), 1), buffers("rtx-3090", (2, 28), 1, NCCL_RUNTIME_CONNECT="0")
    first = lazy.created()
    assert first == (3 * 64 + 3) * 2 * MIB < 484 * MIB
    assert at_once.created() - first == (996 - 484) * MIB


@pytest.mark.parametrize(
    ("gpu", "num_ranks", "local", "channels"),
    [
        ("h100-sxm", 8, 8, 24),  # logs of a p5.48xlarge: 24 coll channels, 16 nvls, 32 p2p
        ("b200", 8, 8, 32),
        ("h20", 4, 2, 8),  # nccl#1189: two machines, two GPUs of each
        ("a10g", 2, 2, 2),
        ("h100-sxm", 1024, 8, 16),
    ],
)
def test_there_are_as_many_channels_as_logs_say(gpu: str, num_ranks: int, local: int, channels: int) -> None:
    assert buffers(gpu, (2, 26), num_ranks, local=local).num_channels == channels


# --- what is connected when -------------------------------------------------------------------------------------------


def test_since_2_22_only_what_is_called_is_connected() -> None:
    found = buffers("h100-sxm", (2, 30), 8, rank=3)
    assert found.created() == (3 * 32 + 17 + 3) * 2 * MIB  # small allocations of 2 MiB each
    assert found.collective("all_gather", 1 << 26) == 24 * (10 + 2) * MIB
    assert found.collective("reduce_scatter", 1 << 26) == 0
    assert found.collective("all_reduce", 8) == 0
    assert found.collective("all_reduce", 32 * MIB) == 8 * 16 * 2 * MIB  # NVLS
    assert found.sent(5, is_local=True) == 32 * 2 * MIB
    assert found.sent(5, is_local=True) == 0
    assert found.received(5, is_local=True) == 32 * 10 * MIB


@pytest.mark.parametrize(("version", "nvls"), [((2, 18), 6), ((2, 20), 6), ((2, 21), 3)])
def test_before_2_22_all_is_connected_at_once(version: tuple[int, int], nvls: int) -> None:
    """The buffers of NVLS with 2.18 are those of a log: 1,610,612,736 bytes."""
    found = buffers("h100-sxm", version, 8, NCCL_CUMEM_ENABLE="0")
    ring_and_tree = 24 * (2 * 10 + 2) * MIB
    assert found.created() == ring_and_tree + 256 * MIB + 8 * 16 * 2 * nvls * MIB
    assert found.collective("all_reduce", 32 * MIB) == found.collective("all_gather", 32 * MIB) == 0
    assert found.sent(1, is_local=True) > 0


def test_between_machines_each_gpu_has_some_ends_on_the_network() -> None:
    found = buffers("h100-sxm", (2, 30), 16, local=8, rank=3)
    found.created()
    assert found.collective("all_gather", 1 << 26) == (14 * (10 + 2) + 4 * 10) * MIB
    assert found.collective("all_reduce", 8) > 0  # a tree
    assert found.collective("all_reduce", 1 << 30) > 256 * MIB  # NVLS, and its tree
    assert found.sent(9, is_local=False) == 16 * 16 * 128 * 1024
    assert found.sent(10, is_local=False) == 0  # the buffer is shared


def test_without_gpudirect_the_buffers_of_the_network_are_on_the_host() -> None:
    one_each = [buffers("a100-80gb", (2, 30), 4, local=1, interconnect=network) for network in ("ib", "ethernet")]
    assert [each.collective("all_gather", 1 << 26) for each in one_each] == [2 * 2 * 10 * MIB, 0]


@pytest.mark.parametrize(
    ("gpu", "interconnect", "mib"),
    [
        ("rtx-4090", None, 0),  # through the host's memory
        ("rtx-4090", "pcie", 4 * 12),
        ("rtx-3090", "nvlink", 4 * 12),
        ("l40s", None, 4 * 12),
        ("h100-pcie", None, 4 * 12),
        ("a100-80gb", None, 24 * 12),
        ("a100-80gb", "pcie", 4 * 12),
    ],
)
def test_a_ring_depends_on_how_the_gpus_are_connected(gpu: str, interconnect: str | None, mib: int) -> None:
    found = buffers(gpu, (2, 30), 4, interconnect=interconnect)
    assert found.collective("all_gather", 1 << 26) == mib * MIB


@pytest.mark.parametrize(
    ("variables", "mib"),
    [
        ({}, 24 * (10 + 2)),
        ({"NCCL_MAX_NCHANNELS": "8"}, 8 * (10 + 2)),
        ({"NCCL_MIN_NCHANNELS": "32"}, 32 * (10 + 2)),
        ({"NCCL_MAX_CTAS": "4"}, 4 * (10 + 2)),
        ({"NCCL_BUFFSIZE": str(16 * MIB)}, 24 * (22 + 2)),
        ({"NCCL_BUFFSIZE": "many"}, 24 * (10 + 2)),
        ({"NCCL_P2P_DISABLE": "1"}, 0),
        ({"NCCL_P2P_READ_ENABLE": "1"}, 24 * (6 + 6)),
    ],
)
def test_the_variables_of_nccl_are_read(variables: dict[str, str], mib: int) -> None:
    assert buffers("h100-sxm", (2, 30), 8, **variables).collective("all_gather", 1 << 26) == mib * MIB


@pytest.mark.parametrize(
    ("variables", "algorithm"),
    [
        ({}, "nvls"),
        ({"NCCL_NVLS_ENABLE": "0"}, "ring"),
        ({"NCCL_ALGO": "Tree"}, "tree"),
        ({"NCCL_ALGO": "^NVLS"}, "ring"),
        ({"NCCL_ALGO": "allreduce:tree;allgather:ring"}, "tree"),
        ({"NCCL_ALGO": "allgather:ring"}, "nvls"),
        ({"NCCL_ALGO": "Ring,Tree"}, "ring"),
    ],
)
def test_the_variables_choose_the_algorithm(variables: dict[str, str], algorithm: str) -> None:
    assert buffers("h100-sxm", (2, 30), 8, **variables).algorithm("all_reduce", 1 << 26) == algorithm


def test_channels_to_a_peer_are_as_few_as_to_another_machine() -> None:
    two, eight = (
        buffers("h100-sxm", (2, 27), 16, local=8, **given) for given in ({}, {"NCCL_NCHANNELS_PER_NET_PEER": "8"})
    )  # type: ignore[arg-type]
    assert two.sent(1, is_local=True) == 2 * 2 * MIB
    assert eight.sent(1, is_local=True) == 8 * 2 * MIB


@pytest.mark.parametrize("text", ["nvlink,pcie", "ib,ethernet", "infiniband"])
def test_a_wrong_interconnect_is_a_mistake_of_usage(text: str) -> None:
    with pytest.raises(UsageError, match="must be nvlink, pcie or host"):
        fabric_of(gpus.find("a100-80gb"), text)


def test_an_unknown_card_is_connected_as_others_of_its_architecture() -> None:
    assert fabric_of(gpus.find("24GiB,sm89")).machine == "pcie"
    assert fabric_of(gpus.find("80GiB,sm90")).machine == "nvlink"
