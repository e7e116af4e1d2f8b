"""Launchers: a single process is run without its launcher where all it does is known; several on one machine are
started by the launcher itself, each rank on a card of its own. Several machines: taken_apart.py."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foretell.errors import UnsupportedError, UsageError

TORCHRUN = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
DEEPSPEED = {"deepspeed", "deepspeed.launcher.runner"}
_REMOTE = {"horovodrun", "colossalai"}
"""They start processes their own way."""


_SIZES = {
    "WORLD_SIZE": "RANK", "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK",
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
}  # fmt: skip
"""What a launcher that has started foretell itself says: the number of processes, and which one this is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """The options of a launcher, with dashes; on the command line they may have underscores."""

    flags: frozenset[str]
    """Those without a value."""
    values: frozenset[str] | None = None
    """Those with one; None: all others."""
    short: dict[str, str] = field(default_factory=dict)
    pairs: frozenset[str] = frozenset()
    """Those with two values."""


TORCHRUN_SYNTAX = Syntax(  # torch 2.6 to 2.15
    flags=frozenset({
        "standalone", "module", "no-python", "run-path", "use-env", "virtual-local-rank", "duplicate-stdout-filters",
        "duplicate-stderr-filters", "shutdown-timeout-is-fatal",
    }),
    short={"m": "module", "r": "redirects", "t": "tee"},
)  # fmt: skip
_ACCELERATE_SYNTAX = Syntax(  # of accelerate 1.15, what leads to its simple launcher
    flags=frozenset({"module", "no-python", "quiet"}),
    values=frozenset({
        "num-processes", "num-machines", "machine-rank", "mixed-precision", "dynamo-backend", "main-process-ip",
        "main-process-port", "num-cpu-threads-per-process",
    }),
    short={"m": "module", "q": "quiet"},
)  # fmt: skip
_ACCELERATE_COUNTS = re.compile(r"--num[_-](processes|machines)[= ](\d+)")
DEEPSPEED_SYNTAX = Syntax(  # of deepspeed 0.19, what starts processes on this machine
    flags=frozenset({"module", "no-python", "no-local-rank", "quiet"}),
    values=frozenset({
        "num-nodes", "num-gpus", "num-accelerators", "master-addr", "master-port", "log-level", "hostfile", "launcher",
        "include", "exclude", "ssh-port",
    }),
    short={"q": "quiet", "H": "hostfile", "i": "include", "e": "exclude"},
)
HOSTFILE = "/job/hostfile"
"""Where DeepSpeed looks for machines."""
ABOUT_SEVERAL = (
    "A rank of a DDP job needs about as much memory as one process; with FSDP, ZeRO or tensor parallelism it needs "
    "less, and one process does not show how much"
)
"""What the memory of one process says about a job of several."""
HINT = f"Run one process: foretell run torchrun --nproc_per_node=1 SCRIPT.py. {ABOUT_SEVERAL}."


@dataclass(frozen=True, slots=True, kw_only=True)
class OneProcess:
    """The only process a launcher would start."""

    words: tuple[str, ...]
    """As after `foretell run`."""
    launcher: str
    environment: dict[str, str]
    """What the launcher would set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The processes that a launcher starts on this machine."""

    count: int


def processes(
    words: Sequence[str], environ: Mapping[str, str], *, gpus_per_node: int | None = None
) -> OneProcess | Ranks | None:
    """The only process that a launcher would start, or how many it starts itself; None if the words name no launcher,
    or one that does not say. Raises UnsupportedError for those of other machines."""
    name, own = launcher_of(list(words))
    if name in TORCHRUN:
        return _of_torchrun(name, own, gpus_per_node or 1)
    if name in DEEPSPEED:
        return _of_deepspeed(name, own, gpus_per_node)
    if name in _REMOTE:
        raise UnsupportedError(f"{name} starts ranks in its own way. {HINT}")
    for variable in _SIZES:
        size = environ.get(variable, "")
        if size.isdecimal() and int(size) > 1:
            raise UnsupportedError(
                f"{variable}={size} is set, so the script would wait for {int(size) - 1} other processes. Start all of "
                f"them with torchrun, add --world-size {int(size)} to run some of them, or set {variable}=1 and "
                f"{_SIZES[variable]}=0. {ABOUT_SEVERAL}."
            )
    return _of_accelerate(own, environ) if name == "accelerate" else None


def launcher_of(words: list[str]) -> tuple[str, list[str]]:
    """The name of a launcher, or of any other command, and the words that are for it."""
    if not words:
        return "", []
    for number, word in enumerate(words[:5]):
        if word == "-m" and number + 1 < len(words):
            module, own = words[number + 1], words[number + 2 :]
            if module in TORCHRUN | DEEPSPEED | _REMOTE:
                return module, own
            if module == "accelerate.commands.launch":
                return "accelerate", own
    name = Path(words[0]).name
    if name == "accelerate-launch":
        return "accelerate", words[1:]
    if name == "accelerate":
        return (name, words[2:]) if words[1:2] == ["launch"] else ("", [])
    return name, words[1:]


def parsed(words: list[str], syntax: Syntax) -> tuple[dict[str, str], tuple[str, ...]] | None:
    """Options by their names, and the script with its arguments; None if one of the options is not known."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].lstrip("-").partition("=")
        attached = re.fullmatch(r"-([a-zA-Z])(\d+)", words[at])
        if attached and attached[1] in syntax.short:
            name, equals, value = attached[1], "=", attached[2]
        name = name.replace("_", "-")
        name = syntax.short.get(name, name)
        if name not in syntax.flags:
            if syntax.values is not None and name not in syntax.values:
                return None
            if not equals:
                at += 1
                value = words[at] if at < len(words) else ""
        options[name] = f"{options[name]}\0{value}" if name == "x" and name in options else value
        at += 2 if name in syntax.pairs else 1
    return options, tuple(words[at + 1 :] if words[at : at + 1] == ["--"] else words[at:])


# --- torchrun ---------------------------------------------------------------------------------------------------------


def _of_torchrun(name: str, words: list[str], num_gpus: int) -> OneProcess | Ranks:
    found = parsed(words, TORCHRUN_SYNTAX)
    assert found is not None, "any option is known"
    options, script = found
    count = _num_ranks(name, options, num_gpus)
    if count != 1:
        return Ranks(count=count)
    script = own_words(options, script)
    if name == "torch.distributed.launch" and "use-env" not in options:
        script = with_argument(script, "--local-rank=0")
    return OneProcess(words=script, launcher=name, environment=_environment(options))


def _num_ranks(name: str, options: Mapping[str, str], num_gpus: int) -> int:
    """`gpu` and `auto` mean one for each card."""
    per_node = options.get("nproc-per-node", "1")
    if per_node in ("gpu", "auto"):
        return num_gpus
    if not per_node.isdecimal() or int(per_node) < 1:
        raise UsageError(f"{name} --nproc-per-node={per_node}: must be a number (1 or more), gpu or auto.")
    return int(per_node)


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
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": options.get("rdzv-id", "none"),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": options.get("max-restarts", "0"),
    }


# --- accelerate -------------------------------------------------------------------------------------------------------


def _of_accelerate(words: list[str], environ: Mapping[str, str]) -> OneProcess | Ranks | None:
    """Without the launcher, which imports torch once more, if its options and nothing else say what it sets."""
    asked = {name: int(count) for name, count in _ACCELERATE_COUNTS.findall(" ".join(words))}
    if asked.get("processes", 1) > 1:
        return Ranks(count=asked["processes"])
    found = parsed(words, _ACCELERATE_SYNTAX)
    if found is None or not found[1] or _has_accelerate_config(environ):
        return None
    options, script = found
    precision = options.get("mixed-precision", "no").lower()
    is_plain = options.get("dynamo-backend", "no").lower() == "no" and precision in ("no", "fp16", "bf16")
    counts = (options.get("num-processes", "1"), options.get("num-machines", "1"), options.get("machine-rank", "0"))
    if not is_plain or counts != ("1", "1", "0"):
        return None
    environment = {  # accelerate/utils/launch.py, prepare_simple_launcher_cmd_env
        "ACCELERATE_USE_CPU": "False",
        "ACCELERATE_MIXED_PRECISION": precision,
        "ACCELERATE_DYNAMO_BACKEND": "NO",
        "ACCELERATE_DYNAMO_MODE": "default",
        "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
        "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
        "OMP_NUM_THREADS": options.get("num-cpu-threads-per-process") or environ.get("OMP_NUM_THREADS") or "1",
    }
    return OneProcess(words=own_words(options, script), launcher="accelerate", environment=environment)


def accelerate_config(words: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The configuration that `accelerate launch` with these options reads; None: there is none."""
    given = re.search(r"--config[_-]file[= ](\S+)", " ".join(words))
    paths = [cwd / given[1]] if given else _accelerate_configs(environ)
    return next((path for path in paths if path.is_file()), None)


def _has_accelerate_config(environ: Mapping[str, str]) -> bool:
    """As `accelerate config` writes it."""
    return any(path.exists() for path in _accelerate_configs(environ))


def _accelerate_configs(environ: Mapping[str, str]) -> list[Path]:
    home = environ.get("HOME", "~")
    cache = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or f"{home}/.cache", "huggingface")
    folder = Path(cache.replace("~", home, 1) if cache.startswith("~/") else cache, "accelerate")
    return [folder / f"default_config.{suffix}" for suffix in ("yaml", "json")]


# --- DeepSpeed --------------------------------------------------------------------------------------------------------


def _of_deepspeed(name: str, words: list[str], num_gpus: int | None) -> OneProcess | Ranks | None:
    """Without a number, DeepSpeed uses all the cards there are."""
    options, script = parsed(words, DEEPSPEED_SYNTAX) or ({}, ())
    asked = options.get("num-gpus", options.get("num-accelerators", str(num_gpus or "")))
    if asked != "1":
        return Ranks(count=int(asked)) if asked.isdecimal() else None
    script = own_words(options, script)
    if "no-local-rank" not in options:
        script = with_argument(script, "--local_rank=0")
    environment = {  # deepspeed/launcher/launch.py
        "CUDA_VISIBLE_DEVICES": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": options.get("master-port", "29500"),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "CROSS_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_SIZE": "1",
        "CROSS_SIZE": "1",
    }
    return OneProcess(words=script, launcher=name, environment=environment)


# --- shared -----------------------------------------------------------------------------------------------------------


def own_words(options: Mapping[str, str], script: tuple[str, ...]) -> tuple[str, ...]:
    if "module" in options:
        return ("-m", *script)
    if "no-python" not in options and script and not script[0].endswith(".py"):
        return ("python", *script)
    return script


def with_argument(words: tuple[str, ...], argument: str) -> tuple[str, ...]:
    """As the first one of the script."""
    if not words:
        return words
    at = 2 if words[0] in ("-m", "python") else 1
    return (*words[:at], argument, *words[at:])


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
