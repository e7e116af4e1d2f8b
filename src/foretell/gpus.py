"""Looks up a GPU, or a MIG slice of one, by name in the tables gpus.toml and mig.toml."""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from foretell.errors import UsageError
from foretell.records import Gpu
from foretell.units import GIB, KIB, MIB, TIB, parse_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Words in product names that do not change which card is meant.
_NOISE = re.compile(r"\b(nvidia|geforce|tesla|generation|gpu|graphics card|edition|workstation)\b")
_SLICE = re.compile(r"(.+?)(?:\s*:\s*(?:mig[- ])?|\s+mig\s+)(\S*)", re.IGNORECASE)
"""`a100-80gb:3g.40gb`, or as CUDA names it: `NVIDIA A100-SXM4-80GB MIG 3g.40gb`."""


_MOST_BYTES = 16 * TIB
"""What a card can have: the virtual GPU reserves addresses for all of it, and a process has 128 TiB."""
_MOST_SMS = 4096
_SOLD_GIB = (4, 5, 6, 8, 10, 11, 12, 16, 18, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 288)
"""Memory of GPUs as they are sold. Each has a little less."""


def all_gpus() -> tuple[Gpu, ...]:
    """Every card in the order of the table: oldest generation first."""
    return tuple(_table().values())


def all_slices() -> tuple[Gpu, ...]:
    """Every MIG slice of every card, in the order of the table."""
    return tuple(gpu for slices in _slices().values() for gpu in slices.values())


def find(text: str) -> Gpu:
    """The card called `rtx3060`, "RTX 3060", `a100-80gb`, `4090`; the MIG slice `a100-80gb:3g.40gb`; or the free form
    `24GiB,sm89[,128sms]`."""
    if not text.strip():
        raise UsageError("the name of the GPU is empty. `foretell gpus` lists the known GPUs.")
    if "," in text:
        return _described(text)
    is_slice = _SLICE.fullmatch(text.strip())
    if is_slice:
        return _slice_of(find(is_slice[1]), is_slice[2].lower())
    names = _spellings()
    key = _key(text)
    for candidate in (key, f"rtx{key}", f"gtx{key}"):
        if candidate in names:
            return _table()[names[candidate]]
    raise UsageError(
        f"unknown GPU: {text!r}. {_suggestion(key)} `foretell gpus` lists the known GPUs; "
        "describe any other by its memory and compute capability, for example --gpu 24GiB,sm89."
    )


def with_memory(total_bytes: int, *, within: float = 0.01) -> list[Gpu]:
    """Cards with about that much memory, nearest first: it moves with the driver by up to 1 %."""
    near = [gpu for gpu in all_gpus() if abs(gpu.total_bytes - total_bytes) <= within * total_bytes]
    return sorted(near, key=lambda gpu: abs(gpu.total_bytes - total_bytes))


def slices_per_card(gpu: Gpu) -> int | None:
    """How many MIG slices of this kind a card has room for; None if it is no slice."""
    profile = _profile_of(gpu)
    return None if profile is None else int(profile["instances"])


def is_guess(gpu: Gpu) -> bool:
    """Whether memory and SMs of this MIG slice were not found in any published output."""
    profile = _profile_of(gpu)
    return profile is not None and bool(profile.get("is_guess", False))


def _profile_of(gpu: Gpu) -> dict[str, Any] | None:
    card, _, name = gpu.name.partition(":")
    rows = (row for row in _read("mig.toml")["mig"] if card in row["gpus"])
    return next((profile for row in rows for profile in row["profiles"] if profile["name"] == name), None)


def sold_bytes(gpu: Gpu) -> int:
    """Its memory as people call it: an RTX 4090 has 24 GiB, although CUDA finds 23.64. The name of a slice says it."""
    in_name = re.search(r":.*\.([0-9]+)gb$", gpu.name)
    if in_name:
        return int(in_name[1]) * GIB
    return next((size * GIB for size in _SOLD_GIB if size * GIB >= gpu.total_bytes), gpu.total_bytes)


def _slice_of(card: Gpu, profile: str) -> Gpu:
    slices = _slices().get(card.name)
    if slices is None:
        known = ", ".join(_slices())
        raise UsageError(f"no MIG profiles are known for {card.name}. They are known for {known}.")
    if profile not in slices:
        raise UsageError(f"{card.name} has no MIG profile {profile!r}. It has {', '.join(slices)}.")
    return slices[profile]


def _described(text: str) -> Gpu:
    """A card that is not in the table; the listed card of that capability nearest in memory supplies the rest."""
    usage = f"not a GPU: {text!r}. Describe one as MEMORY,smNN[,COUNTsms], e.g. 24GiB,sm89 or 24GiB,sm89,128sms."
    parts = [part.strip() for part in text.split(",")]
    if not 2 <= len(parts) <= 3:
        raise UsageError(usage)
    total_bytes = parse_bytes(parts[0])
    capability_match = re.fullmatch(r"(?:sm|cc)?[_ ]?([0-9]{1,3}?)[.]?([0-9])[af]?", parts[1].lower())
    sms_match = re.fullmatch(r"([0-9]{1,9}) ?sms?", parts[2].lower()) if len(parts) == 3 else None
    if capability_match is None or (len(parts) == 3 and sms_match is None):
        raise UsageError(usage)
    if total_bytes < 256 * MIB:
        raise UsageError(f"not a GPU: {text!r} has only {total_bytes} bytes of memory. Add a unit, for example 24GiB.")
    if total_bytes > _MOST_BYTES:
        raise UsageError(f"not a GPU: {text!r} has more than {_MOST_BYTES // TIB} TiB of memory.")
    capability = (int(capability_match[1]), int(capability_match[2]))
    relatives = [gpu for gpu in all_gpus() if gpu.compute_capability == capability]
    if not relatives:
        known = ", ".join(f"sm{major}{minor}" for major, minor in sorted({g.compute_capability for g in all_gpus()}))
        raise UsageError(f"unknown compute capability in {text!r}. Known: {known}.")
    relative = min(relatives, key=lambda gpu: abs(gpu.total_bytes - total_bytes))
    num_sms = int(sms_match[1]) if sms_match else relative.num_sms
    if not 0 < num_sms <= _MOST_SMS:
        raise UsageError(f"{usage} A GPU has 1 to {_MOST_SMS} SMs.")
    return replace(
        _with_sms(relative, num_sms),
        name=",".join(part.replace(" ", "") for part in parts),
        device_name=f"NVIDIA virtual GPU ({parts[0]}, sm_{capability[0]}{capability[1]})",
        total_bytes=total_bytes,
        is_measured=False,
        gpu_class=None,
        power_watts=None,
    )


def _with_sms(gpu: Gpu, num_sms: int) -> Gpu:
    """With another number of SMs, and what follows from it."""
    scale = num_sms / gpu.num_sms
    return replace(
        gpu,
        num_sms=num_sms,
        fp32_flops=gpu.fp32_flops * scale,
        tensor_flops=gpu.tensor_flops * scale,
        context_bytes=gpu.context_bytes + (num_sms - gpu.num_sms) * gpu.threads_per_sm * KIB,
        power_watts=gpu.power_watts and round(gpu.power_watts * scale),
    )


def _suggestion(key: str) -> str:
    names = _spellings()
    # `rtx6000` probably means one of the cards whose name contains it, however long the rest of the name.
    close = [spelling for spelling in names if len(key) >= 2 and key in spelling]
    close += difflib.get_close_matches(key, names, n=12, cutoff=0.6)
    found = list(dict.fromkeys(names[spelling] for spelling in close))[:5]
    return f"Did you mean {', '.join(found)}?" if found else "No similar name is known."


@cache
def _spellings() -> dict[str, str]:
    """Normalized spelling -> name. Names win over aliases, and aliases over device names, which are not unique."""
    raw = _read("gpus.toml")
    spellings: dict[str, str] = {_key(name): name for name in raw["gpu"]}
    for name, row in raw["gpu"].items():
        for alias in row.get("aliases", ()):
            assert spellings.setdefault(_key(alias), name) == name, f"{alias} names two cards"
    for name, row in raw["gpu"].items():
        spellings.setdefault(_key(row["device_name"]), name)
    return spellings


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub("", text.lower().replace("_", " ")))


@cache
def _table() -> dict[str, Gpu]:
    raw = _read("gpus.toml")
    return {name: _gpu(name, row, raw["capability"][row["capability"]]) for name, row in raw["gpu"].items()}


def _gpu(name: str, row: dict[str, Any], limits: dict[str, int]) -> Gpu:
    major, minor = row["capability"].split(".")
    clock_hz = row["clock_mhz"] * 10**6
    return Gpu(
        name=name,
        device_name=row["device_name"],
        compute_capability=(int(major), int(minor)),
        num_sms=row["num_sms"],
        total_bytes=row["total_bytes"],
        is_measured=row.get("is_measured", False),
        shared_bytes_per_block=limits["shared_bytes_per_block"],
        shared_bytes_per_block_optin=limits["shared_bytes_per_block_optin"],
        shared_bytes_per_sm=limits["shared_bytes_per_sm"],
        registers_per_sm=limits["registers_per_sm"],
        threads_per_sm=limits["threads_per_sm"],
        blocks_per_sm=limits["blocks_per_sm"],
        l2_bytes=row["l2_kib"] * KIB,
        memory_bus_bits=row["memory_bus_bits"],
        clock_khz=row["clock_mhz"] * 1000,
        memory_clock_khz=row["memory_clock_mhz"] * 1000,
        bandwidth_bytes_per_second=2 * row["memory_clock_mhz"] * 10**6 * row["memory_bus_bits"] // 8,
        fp32_flops=float(row["num_sms"] * limits["fp32_lanes_per_sm"] * 2 * clock_hz),
        tensor_flops=row["tensor_tflops"] * 1e12,
        pci_device_id=row["pci_device_id"],
        context_bytes=limits["context_base_mib"] * MIB + row["num_sms"] * limits["threads_per_sm"] * KIB,
        gpu_class=row["class"],
        power_watts=row.get("power_watts"),
    )


@cache
def _slices() -> dict[str, dict[str, Gpu]]:
    """Card -> profile -> slice."""
    return {
        name: {profile["name"]: _slice(_table()[name], profile) for profile in row["profiles"]}
        for row in _read("mig.toml")["mig"]
        for name in row["gpus"]
    }


def _slice(card: Gpu, profile: dict[str, Any]) -> Gpu:
    """CUDA sees a slice as a card with fewer SMs and less memory; L2 and bandwidth are divided as the memory is."""
    total_bytes = min(card.total_bytes, profile["memory_mib"] * MIB)
    eighths = max(1, round(8 * total_bytes / card.total_bytes))
    return replace(
        _with_sms(card, profile["num_sms"]),
        name=f"{card.name}:{profile['name']}",
        device_name=f"{card.device_name} MIG {profile['name']}",
        total_bytes=total_bytes,
        is_measured=False,
        l2_bytes=card.l2_bytes * eighths // 8,
        memory_bus_bits=card.memory_bus_bits * eighths // 8,
        bandwidth_bytes_per_second=card.bandwidth_bytes_per_second * eighths // 8,
    )


@cache
def _read(name: str) -> dict[str, Any]:
    with Path(__file__).with_name(name).open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)
    return table
