"""Launchers of several processes: torchrun with one process becomes that process; several are refused."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretell.errors import UnsupportedError

_TORCHRUN = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_OTHERS = {
    "deepspeed", "deepspeed.launcher.runner", "mpirun", "mpiexec", "horovodrun", "srun", "colossalai",
}  # fmt: skip
_FLAGS = {
    "standalone", "module", "no-python", "run-path", "use-env", "virtual-local-rank", "duplicate-stdout-filters",
    "duplicate-stderr-filters", "shutdown-timeout-is-fatal",
}  # fmt: skip
"""The options of torchrun that have no value (torch 2.6 to 2.15)."""
_SHORT = {"m": "module", "r": "redirects", "t": "tee"}
ABOUT_SEVERAL = (
    "A rank of a DDP job needs about as much memory as one process; with FSDP, ZeRO or tensor parallelism it needs "
    "less, and one process does not show how much"
)
"""What the memory of one process says about a job of several."""
_HINT = f"Run one process: foretell run torchrun --nproc_per_node=1 SCRIPT.py. {ABOUT_SEVERAL}."


@dataclass(frozen=True, slots=True, kw_only=True)
class OneProcess:
    """The only process a launcher would start."""

    words: tuple[str, ...]
    """As after `foretell run`."""
    launcher: str
    environment: dict[str, str]
    """What the launcher would set."""


def one_process(words: Sequence[str], environ: Mapping[str, str]) -> OneProcess | None:
    """The process of torchrun if there is one; None if the words name no launcher. Several are refused."""
    name, at = _launcher(words)
    if name in _OTHERS:
        raise UnsupportedError(f"multi-process jobs ({name}) are not supported yet. {_HINT}")
    if name == "accelerate" and _is_multi(words):
        raise UnsupportedError(
            "`accelerate launch` with several processes is not supported yet. Run one process: add "
            f"--num_processes 1. {ABOUT_SEVERAL}."
        )
    if name in _TORCHRUN:
        options, script = _torchrun_options(words[at:])
        _refuse_several(name, options)
        return OneProcess(words=_own_words(name, options, script), launcher=name, environment=_environment(options))
    world_size = environ.get("WORLD_SIZE", "")
    if world_size.isdigit() and int(world_size) > 1:
        raise UnsupportedError(
            f"WORLD_SIZE={world_size} is set, but multi-process jobs are not supported yet. Set WORLD_SIZE=1 and "
            f"RANK=0. {ABOUT_SEVERAL}."
        )
    return None


def _launcher(words: Sequence[str]) -> tuple[str, int]:
    """The name of a launcher, or of any other command, and where its own words begin."""
    if not words:
        return "", 0
    name = Path(words[0]).name
    if name == "accelerate-launch":
        name = "accelerate"
    for number, word in enumerate(words[:5]):
        if word == "-m" and number + 1 < len(words):
            module = words[number + 1]
            if module in _TORCHRUN | _OTHERS:
                return module, number + 2
            if module == "accelerate.commands.launch":
                return "accelerate", number + 2
    return name, 1


def _torchrun_options(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Options by their names with dashes, and the script with its arguments."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].lstrip("-").replace("_", "-").partition("=")
        name = _SHORT.get(name, name)
        if equals:
            value = words[at].partition("=")[2]
        elif name not in _FLAGS:
            at += 1
            value = words[at] if at < len(words) else ""
        options[name] = value
        at += 1
    return options, tuple(words[at + 1 :] if words[at : at + 1] == ["--"] else words[at:])


def _refuse_several(name: str, options: Mapping[str, str]) -> None:
    """On a virtual GPU, `gpu` and `auto` mean one process."""
    num_nodes, per_node = options.get("nnodes", "1"), options.get("nproc-per-node", "1")
    is_one_node = num_nodes in ("1", "1:1")
    if not is_one_node or per_node not in ("1", "gpu", "auto"):
        several = f"--nproc_per_node={per_node}" if is_one_node else f"--nnodes={num_nodes}"
        raise UnsupportedError(f"multi-process jobs ({name} {several}) are not supported yet. {_HINT}")


def _own_words(name: str, options: Mapping[str, str], script: tuple[str, ...]) -> tuple[str, ...]:
    if "module" in options:
        script = ("-m", *script)
    elif "no-python" not in options and script and not script[0].endswith(".py"):
        script = ("python", *script)
    if name == "torch.distributed.launch" and "use-env" not in options:
        at = 2 if "module" in options else 1
        script = (*script[:at], "--local-rank=0", *script[at:])
    return script


def _environment(options: Mapping[str, str]) -> dict[str, str]:
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "ROLE_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": "1",
        "ROLE_NAME": options.get("role", "default"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "TORCHELASTIC_RUN_ID": options.get("rdzv-id", "none"),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": options.get("max-restarts", "0"),
    }


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _is_multi(words: Sequence[str]) -> bool:
    count = re.search(r"--num[_-](?:processes|machines)[= ](\d+)", " ".join(words))
    return "--multi_gpu" in words or "--multi-gpu" in words or (count is not None and int(count[1]) > 1)
