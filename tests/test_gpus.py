from __future__ import annotations

import re

import pytest

from foretell import gpus
from foretell.errors import UsageError
from foretell.records import Gpu
from foretell.units import GIB, MIB


def test_the_table_has_at_least_forty_cards_with_distinct_names() -> None:
    names = [gpu.name for gpu in gpus.all_gpus()]
    assert len(names) == len(set(names)) >= 40


@pytest.mark.parametrize(
    ("name", "total_bytes"), [("rtx-3060", 12622168064), ("rtx-4060", 8318222336), ("a100-40gb", 42474471424)]
)
def test_measured_cards_have_exactly_the_bytes_torch_reports(name: str, total_bytes: int) -> None:
    gpu = gpus.find(name)
    assert (gpu.total_bytes, gpu.is_measured) == (total_bytes, True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("rtx3060", "rtx-3060"),
        ("RTX 3060", "rtx-3060"),
        ("rtx_3060", "rtx-3060"),
        ("NVIDIA GeForce RTX 3060", "rtx-3060"),
        ("4090", "rtx-4090"),
        ("geforce 4090", "rtx-4090"),
        ("3060 ti", "rtx-3060-ti"),
        ("1080ti", "gtx-1080-ti"),
        ("a100", "a100-40gb"),
        ("a100-80gb", "a100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("h100", "h100-sxm"),
        ("h100 sxm", "h100-sxm"),
        ("H100 PCIe", "h100-pcie"),
        ("rtx 6000 ada", "rtx-6000-ada"),
    ],
)
def test_any_usual_spelling_finds_the_card(text: str, name: str) -> None:
    assert gpus.find(text).name == name


def test_every_card_is_found_by_its_name_and_fits_its_kind() -> None:
    for gpu in gpus.all_gpus():
        assert gpus.find(gpu.name) is gpu
        assert gpu.context_bytes < gpu.total_bytes / 8, gpu.name
        assert gpu.shared_bytes_per_block <= gpu.shared_bytes_per_block_optin <= gpu.shared_bytes_per_sm, gpu.name
        assert 100e9 < gpu.bandwidth_bytes_per_second < 10e12, gpu.name
        assert 4e12 < gpu.fp32_flops < 130e12, gpu.name
        assert (gpu.tensor_flops > gpu.fp32_flops) == (gpu.compute_capability >= (7, 0)), gpu.name


@pytest.mark.parametrize(
    ("name", "sms", "fp32_tflops", "gb_per_second"),
    [
        ("a100-40gb", 108, 19.5, 1555),
        ("h100-sxm", 132, 66.9, 3352),
        ("rtx-4090", 128, 82.6, 1008),
        ("t4", 40, 8.1, 320),
    ],
)
def test_derived_rates_are_the_published_ones(name: str, sms: int, fp32_tflops: float, gb_per_second: float) -> None:
    gpu = gpus.find(name)
    assert gpu.num_sms == sms
    assert gpu.fp32_flops / 1e12 == pytest.approx(fp32_tflops, abs=0.05)
    assert gpu.bandwidth_bytes_per_second / 1e9 == pytest.approx(gb_per_second, abs=0.5)


def test_an_unknown_name_lists_the_nearest_ones() -> None:
    with pytest.raises(UsageError, match=r"quadro-rtx-6000, rtx-6000-ada"):
        gpus.find("rtx6000")
    with pytest.raises(UsageError, match="foretell gpus"):
        gpus.find("voodoo")


def test_a_card_can_be_described_by_memory_and_capability() -> None:
    gpu = gpus.find("24GiB,sm89")
    assert (gpu.name, gpu.total_bytes, gpu.compute_capability) == ("24GiB,sm89", 24 * GIB, (8, 9))
    assert (gpu.num_sms, gpu.is_measured) == (128, False)  # the RTX 4090 is nearest


def test_the_number_of_sms_of_a_described_card_changes_its_rates_and_context() -> None:
    gpu, nearest = gpus.find("24 GiB, sm_89, 64sms"), gpus.find("rtx-4090")
    assert gpu.num_sms == 64
    assert gpu.fp32_flops == nearest.fp32_flops / 2
    assert nearest.context_bytes - gpu.context_bytes == 64 * 1536 * 1024


@pytest.mark.parametrize(
    "text", ["24GiB,sm42", "24,sm89", "24GiB,fast", "24GiB,sm89,many", "24GiB,sm89,0sms", "1,2,3,4"]
)
def test_a_description_that_says_nothing_sensible_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        gpus.find(text)


@pytest.mark.parametrize("gpu", gpus.all_gpus(), ids=lambda gpu: gpu.name)
def test_the_class_of_a_card_is_what_its_device_name_says(gpu: Gpu) -> None:
    if re.search("GeForce|TITAN", gpu.device_name):
        assert gpu.gpu_class == "consumer"
    elif re.search(r"Quadro|RTX A\d|Ada Generation|RTX PRO", gpu.device_name):
        assert gpu.gpu_class == "workstation"
    else:
        assert re.match(r"Tesla|NVIDIA [ALHB]\d|NVIDIA GH200", gpu.device_name), gpu.device_name
        assert gpu.gpu_class == "datacenter"


# --- MIG --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["a100-80gb:3g.40gb", "A100 80GB : 3g.40gb", "a100-80gb:mig-3g.40gb", "NVIDIA A100-SXM4-80GB MIG 3g.40gb"],
)
def test_a_slice_is_found_by_card_and_profile(text: str) -> None:
    gpu, card = gpus.find(text), gpus.find("a100-80gb")
    assert (gpu.name, gpu.device_name) == ("a100-80gb:3g.40gb", "NVIDIA A100-SXM4-80GB MIG 3g.40gb")
    assert (gpu.num_sms, gpu.total_bytes) == (42, 40192 * MIB)
    assert gpu.context_bytes == 210 * MIB + 42 * 2048 * 1024
    assert gpu.fp32_flops == card.fp32_flops * 42 / 108
    assert gpu.bandwidth_bytes_per_second == card.bandwidth_bytes_per_second // 2


@pytest.mark.parametrize(
    ("text", "known"),
    [("a100-80gb:5g.50gb", "1g.10gb, 1g.20gb"), ("a100:", "1g.5gb"), ("rtx-3060:1g.5gb", "a30, a100-40gb"),
     ("voodoo:1g.5gb", "foretell gpus")],
)  # fmt: skip
def test_an_unknown_slice_says_which_are_known(text: str, known: str) -> None:
    with pytest.raises(UsageError, match=known):
        gpus.find(text)


@pytest.mark.parametrize("gpu", gpus.all_slices(), ids=lambda gpu: gpu.name)
def test_slices_of_a_kind_fit_into_their_card(gpu: Gpu) -> None:
    card, count = gpus.find(gpu.name.partition(":")[0]), gpus.slices_per_card(gpu)
    assert count is not None
    assert gpus.find(gpu.device_name) == gpu
    assert count * gpu.num_sms <= card.num_sms
    assert count * gpu.total_bytes <= card.total_bytes
    compute, memory = re.fullmatch(r"(\d)g\.(\d+)gb", gpu.name.partition(":")[2]).groups()  # type: ignore[union-attr]
    assert 0.86 * int(memory) * GIB <= gpu.total_bytes <= int(memory) * GIB
    of_card = [each for each in gpus.all_slices() if each.name.startswith(f"{card.name}:")]
    largest = max(of_card, key=lambda each: each.num_sms)
    slices = int(largest.name.partition(":")[2][0])
    assert gpu.num_sms >= 0.8 * largest.num_sms * int(compute) / slices


def test_memory_is_compared_as_it_is_sold() -> None:
    sold = {name: gpus.sold_bytes(gpus.find(name)) / GIB for name in ("l4", "rtx-4090", "h200:1g.18gb", "gtx-1080-ti")}
    assert sold == {"l4": 24, "rtx-4090": 24, "h200:1g.18gb": 18, "gtx-1080-ti": 11}


def test_the_context_guess_is_the_base_and_a_kibibyte_per_thread() -> None:
    assert gpus.find("a100-40gb").context_bytes == 210 * MIB + 108 * 2048 * 1024
