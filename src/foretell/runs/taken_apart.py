"""Commands of several ranks that are not left to their launcher: its options say how many there are, and what each of
them runs. It would start ranks on other machines, or all of them; or torchrun would import torch once for each, and
once more for itself."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import UnsupportedError, UsageError
from foretell.runs.launchers import (
    DEEPSPEED,
    DEEPSPEED_SYNTAX,
    HOSTFILE,
    TORCHRUN,
    TORCHRUN_SYNTAX,
    OneProcess,
    Syntax,
    accelerate_config,
    free_port,
    launcher_of,
    own_words,
    parsed,
    with_argument,
)
from foretell.runs.worlds import GPUS_PER_NODE, LOCAL_RANK, MOST_AT_ONCE, Launcher, World, check_ranks, world_of

_SRUN_SYNTAX = Syntax(  # of Slurm 24
    flags=frozenset({
        "exclusive", "overcommit", "overlap", "label", "unbuffered", "no-kill", "verbose", "quiet", "pty", "contiguous",
        "disable-status", "no-allocate", "oversubscribe", "preserve-env", "reboot", "spread-job", "use-min-nodes",
        "x11", "no-container-mount-home", "container-writable", "whole", "het-group-all",
    }),
    short={
        "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "G": "gpus", "s": "oversubscribe", "O": "overcommit",
        "l": "label", "u": "unbuffered", "K": "kill-on-bad-exit", "v": "verbose", "Q": "quiet",
    },
)  # fmt: skip
_MPIRUN_SYNTAX = Syntax(  # of Open MPI 4 and 5, and MPICH
    flags=frozenset({
        "allow-run-as-root", "oversubscribe", "nooversubscribe", "report-bindings", "tag-output", "display-map",
        "verbose", "quiet", "use-hwthread-cpus", "nolocal", "bind-to-none", "bind-to-core", "by-node", "bynode",
        "prepend-rank", "l", "timestamp-output", "display-allocation", "enable-recovery", "forward-signals",
    }),
    short={"np": "n", "npernode": "npernode", "N": "npernode", "ppn": "npernode", "v": "verbose", "q": "quiet"},
    pairs=frozenset({"mca", "gmca", "prtemca", "pmixmca", "genv", "env"}),
)  # fmt: skip
_SLURM = {"srun"}
_MPI = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun"}
_FIRST_OF_ONE = {
    "srun": {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_NNODES": "1", "SLURM_NODEID": "0"},
    "mpirun": {
        "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    },
}  # fmt: skip
_MOST_BY_DEFAULT = 8
"""All ranks of a machine are run if they are at most so many."""
_ONLY_WHERE = frozenset({
    "nproc-per-node", "nnodes", "node-rank", "standalone", "module", "master-addr", "master-port", "rdzv-backend",
    "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr", "role", "max-restarts", "monitor-interval", "use-env",
})  # fmt: skip
"""Options of torchrun that say how many ranks there are, what they run and how they meet, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    words: tuple[str, ...]
    """What each rank runs, as after `foretell run`."""
    launcher: str
    world: World
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the options of a launcher say."""

    words: tuple[str, ...]
    size: int
    per_node: int
    environment: dict[str, str]
    kind: Launcher
    is_plain: bool = False
    """The launcher would start Python processes, and do nothing else with them: forks are like them."""


def take_apart(
    words: Sequence[str], environ: Mapping[str, str], *, gpus_per_node: int | None = None,
    world_size: int | None = None, ranks: str | None = None, cwd: Path | None = None,
    files: Sequence[tuple[Path, str]] = (),
) -> Apart | OneProcess | None:  # fmt: skip
    """What to run in the place of the command; None: it is run as it is, with all the processes that it starts.
    `files`: those the job finds changed, as in `Job.files`."""
    if ranks is not None:
        check_ranks(ranks)
    is_asked = world_size is not None or ranks is not None
    name, own = launcher_of(list(words))
    asked: _Asked | None
    if name in TORCHRUN:
        asked = _of_torchrun(name, own, gpus_per_node, world_size)
    elif name in DEEPSPEED:
        asked = _of_deepspeed(name, own, gpus_per_node, world_size)
    elif name in _SLURM or name in _MPI:
        tasks = _of_srun(own, environ, gpus_per_node) if name in _SLURM else _of_mpirun(name, own, gpus_per_node)
        if tasks.size == 1 and not is_asked:
            environment = {**tasks.environment, **_FIRST_OF_ONE[tasks.kind]}
            return OneProcess(words=tasks.words, launcher=name, environment=environment)
        return _apart(name, tasks, ranks=ranks, world_size=world_size, gpus_per_node=gpus_per_node)
    elif name == "accelerate":
        asked = _of_accelerate(words, own, environ, gpus_per_node, is_asked, cwd or Path(), dict(files))
    elif is_asked:
        size = world_size or int(environ.get("WORLD_SIZE") or 0)
        if not size:
            raise UsageError(
                f"--ranks {ranks}: the number of ranks is not known. Add --world-size N, or give a launcher: "
                f"foretell run --ranks {ranks} -- torchrun --nproc-per-node 8 SCRIPT.py"
            )
        per_node = gpus_per_node or min(GPUS_PER_NODE, size)
        asked = _Asked(words=tuple(words), size=size, per_node=per_node, environment={}, kind="torchrun")
        name = ""
    else:
        return None
    if asked is None:
        return None
    if not is_asked and asked.size <= asked.per_node:
        if not asked.is_plain or not 1 < asked.size <= MOST_AT_ONCE:
            return None
        ranks = "all"
    return _apart(name, asked, ranks=ranks, world_size=world_size, gpus_per_node=gpus_per_node)


def _apart(
    name: str, asked: _Asked, *, ranks: str | None, world_size: int | None, gpus_per_node: int | None
) -> Apart:  # fmt: skip
    size = world_size or asked.size
    per_node = min(gpus_per_node or asked.per_node, size)
    if size % per_node and asked.kind not in ("srun", "mpirun"):
        largest = max(count for count in range(1, per_node) if size % count == 0)
        raise UsageError(
            f"{size:,} ranks cannot be started on machines of {per_node} GPUs: the last one would not be full. Give "
            f"another number, or smaller machines, for example --gpus-per-node {largest}."
        )
    wanted = ranks or ("all" if size <= min(per_node, _MOST_BY_DEFAULT) and world_size is None else "auto")
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **asked.environment}
    world = world_of(size=size, per_node=per_node, ranks=wanted, launcher=asked.kind, environment=environment)
    shown = f"{name} is not started" if name else "no launcher is started"
    machines = math.ceil(size / per_node)
    where = "one machine" if machines == 1 else f"{machines:,} machines"
    which = "all of them" if len(world.first) == size else f"of which these run: {_shown(world.first)}"
    more = ", and those that they need" if len(world.first) < size else ""
    note = f"{shown}; {size:,} ranks on {where} of {per_node}, {which}{more}"
    return Apart(words=asked.words, launcher=name or "the command", world=world, note=note)


def _shown(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks[:6]))
    return text if len(ranks) <= 6 else f"{text}, ... {ranks[-1]}"


# --- torchrun ---------------------------------------------------------------------------------------------------------


def _of_torchrun(name: str, words: list[str], gpus_per_node: int | None, world_size: int | None) -> _Asked:
    found = parsed(words, TORCHRUN_SYNTAX)
    assert found is not None, "any option is known"
    options, script = found
    num_nodes = _number(name, "nnodes", options.get("nnodes", "1").rpartition(":")[2])
    per_node_word = options.get("nproc-per-node", "1")
    if per_node_word in ("gpu", "auto"):
        per_node = gpus_per_node or (GPUS_PER_NODE if num_nodes > 1 or world_size else 1)
    else:
        per_node = _number(name, "nproc-per-node", per_node_word)
    if world_size is not None and per_node == 1 and num_nodes == 1:
        per_node = gpus_per_node or min(GPUS_PER_NODE, world_size)
    script = own_words(options, script)
    if name == "torch.distributed.launch" and "use-env" not in options:
        script = with_argument(script, f"--local-rank={LOCAL_RANK}")
    environment = {
        "ROLE_NAME": options.get("role", "default"),
        "TORCHELASTIC_RUN_ID": options.get("rdzv-id", "none"),
        "TORCHELASTIC_MAX_RESTARTS": options.get("max-restarts", "0"),
    }
    if "master-port" in options:
        environment["MASTER_PORT"] = options["master-port"]
    return _Asked(
        words=script, size=num_nodes * per_node, per_node=per_node, environment=environment, kind="torchrun",
        is_plain=options.keys() <= _ONLY_WHERE and script[:1] != ("python",),
    )  # fmt: skip


def _number(name: str, option: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < 1:
        more = ", gpu or auto" if option == "nproc-per-node" else ""
        raise UsageError(f"{name} --{option}={text}: must be a number (1 or more){more}.")
    return int(text)


# --- DeepSpeed --------------------------------------------------------------------------------------------------------


def _of_deepspeed(name: str, words: list[str], gpus_per_node: int | None, world_size: int | None) -> _Asked | None:
    found = parsed(words, DEEPSPEED_SYNTAX)
    if found is None:
        return None
    options, script = found
    hosts = _hosts(options.get("hostfile", HOSTFILE), is_given="hostfile" in options)
    num_nodes = _number(name, "num-nodes", options.get("num-nodes", str(len(hosts) or 1)))
    text = options.get("num-gpus", options.get("num-accelerators", ""))
    per_node = _number(name, "num-gpus", text) if text else gpus_per_node or (min(hosts) if hosts else 0)
    if not per_node:
        if num_nodes == 1 and world_size is None:
            return None  # all the cards there are
        per_node = GPUS_PER_NODE
    script = own_words(options, script)
    if "no-local-rank" not in options:
        script = with_argument(script, f"--local_rank={LOCAL_RANK}")
    environment = {"MASTER_PORT": options["master-port"]} if "master-port" in options else {}
    return _Asked(
        words=script, size=num_nodes * per_node, per_node=per_node, environment=environment, kind="deepspeed"
    )  # fmt: skip


def _hosts(path: str, *, is_given: bool) -> list[int]:
    """Slots of each machine: lines of `worker-1 slots=8`."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        if is_given:
            raise UsageError(f"deepspeed --hostfile={path}: {error.strerror or error}.") from None
        return []
    found = []
    for line in lines:
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"\S+\s+slots=(\d{1,4})", text)
        if match is None or not int(match[1]):
            raise UsageError(f"deepspeed --hostfile={path}: {text!r} is not a line such as `worker-1 slots=8`.")
        found.append(int(match[1]))
    return found


# --- srun and mpirun --------------------------------------------------------------------------------------------------


def _of_srun(words: list[str], environ: Mapping[str, str], gpus_per_node: int | None) -> _Asked:
    found = parsed(words, _SRUN_SYNTAX)
    assert found is not None, "any option is known"
    options, script = found

    def number(option: str, variable: str) -> int | None:
        text = options.get(option) or environ.get(variable, "")
        text = text.rpartition("-")[2].partition("(")[0]  # --nodes 2-4, SLURM_NTASKS_PER_NODE=8(x2)
        return _number("srun", option, text) if text else None

    num_nodes, tasks_per_node = number("nodes", "SLURM_NNODES"), number("ntasks-per-node", "SLURM_NTASKS_PER_NODE")
    size = None if "ntasks" not in options and "ntasks-per-node" in options else number("ntasks", "SLURM_NTASKS")
    size = size or (num_nodes or 1) * (tasks_per_node or 1)
    per_node = tasks_per_node or (math.ceil(size / num_nodes) if num_nodes else gpus_per_node or GPUS_PER_NODE)
    return _Asked(words=script, size=size, per_node=min(per_node, size), environment=_slurm(environ), kind="srun")


def _slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """What an allocation has beside the numbers of tasks."""
    given = {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "foretell", "SLURM_NODELIST": "localhost", "SLURM_STEP_ID": "0"}
    own = {name: environ.get(name, value) for name, value in given.items()}
    addresses = {name: environ[name] for name in ("MASTER_PORT",) if name in environ}
    return {**own, "SLURM_JOBID": own["SLURM_JOB_ID"], "SLURM_JOB_NODELIST": own["SLURM_NODELIST"], **addresses}


def _of_mpirun(name: str, words: list[str], gpus_per_node: int | None) -> _Asked:
    found = parsed(words, _MPIRUN_SYNTAX)
    assert found is not None, "any option is known"
    options, script = found
    size = _number(name, "np", options.get("n", "1"))
    text = options.get("npernode", "")
    mapped = re.search(r"ppr:(\d+):node", options.get("map-by", ""))
    if mapped:
        text = mapped[1]
    per_node = _number(name, "npernode", text) if text else min(size, gpus_per_node or GPUS_PER_NODE)
    exported = dict(each.split("=", 1) for each in options.get("x", "").split("\0") if "=" in each)
    return _Asked(words=script, size=size, per_node=min(per_node, size), environment=exported, kind="mpirun")


# --- accelerate -------------------------------------------------------------------------------------------------------

_ENVIRONMENT = """
import json, os, sys
from accelerate.commands import launch
from accelerate.utils.launch import prepare_multi_gpu_env
before = dict(os.environ)
options = launch.launch_command_parser().parse_args(sys.argv[1:])
options, *_ = launch._validate_launch_command(options)
size, machines = options.num_processes or 1, options.num_machines or 1
words = [options.training_script, *options.training_script_args]
if options.use_deepspeed:
    from accelerate.utils.launch import prepare_deepspeed_cmd_env
    options.num_machines = 1
    _, made = prepare_deepspeed_cmd_env(options)
else:
    options.num_processes = max(size, 2)
    made = prepare_multi_gpu_env(options)
changed = {name: value for name, value in made.items() if before.get(name) != value and name != "PYTHONPATH"}
print(json.dumps([size, machines, ["-m", *words] if options.module else words, changed]))
"""
"""What `accelerate launch` finds in its options and its configuration, from its own functions."""


def _of_accelerate(
    words: Sequence[str], own: list[str], environ: Mapping[str, str], gpus_per_node: int | None, is_asked: bool,
    cwd: Path, files: Mapping[Path, str],
) -> _Asked | None:  # fmt: skip
    """accelerate is asked, by its own Python, only if the answer may be more than one machine."""
    text = " ".join(own)
    path = accelerate_config(own, environ, cwd)
    changed_text = files.get(path.resolve()) if path is not None else None
    config = changed_text if path is None or changed_text is not None else path.read_text(errors="replace")
    machines = re.search(r"--num[_-]machines[= ](\d+)", text)
    in_config = re.search(r"^\W*num_machines\W+(\d+)", config or "", re.MULTILINE)
    several = int((machines or in_config or ["", "1"])[1]) > 1
    if not is_asked and not several:
        return None
    with tempfile.TemporaryDirectory() as folder:
        if path is not None and changed_text is not None:
            copy = Path(folder, path.name)
            copy.write_text(changed_text)
            own = ["--config_file", str(copy), *_without_config(own)]
        size, num_machines, script, changed = _ask_accelerate(words, own, environ, cwd)
    others = {name: value for name, value in changed.items() if not name.startswith(("TORCHELASTIC", "WORLD_SIZE"))}
    environment = {**others, "MASTER_ADDR": "127.0.0.1"}
    per_node = max(1, size // num_machines)
    if num_machines == 1 and size > GPUS_PER_NODE:
        per_node = gpus_per_node or size
    return _Asked(words=tuple(script), size=size, per_node=per_node, environment=environment, kind="accelerate")


def _without_config(own: list[str]) -> list[str]:
    at = next((number for number, word in enumerate(own) if re.match(r"--config[_-]file(=|$)", word)), None)
    return own if at is None else [*own[:at], *own[at + (1 if "=" in own[at] else 2) :]]


def _ask_accelerate(words: Sequence[str], own: list[str], environ: Mapping[str, str], cwd: Path) -> Any:
    from foretell.runs.command import python_of_launcher

    python = python_of_launcher(words, environ.get("PATH")) or sys.executable
    asked: subprocess.CompletedProcess[str] | None = None
    hidden = {name: value for name, value in environ.items() if name not in ("LD_PRELOAD", "WORLD_SIZE", "RANK")}
    try:
        asked = subprocess.run(
            [python, "-c", _ENVIRONMENT, *own], capture_output=True, text=True, timeout=120, cwd=cwd,
            env={**hidden, **_QUIET},
        )  # fmt: skip
        return json.loads(asked.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        said = asked.stderr.strip().splitlines()[-1:] if asked is not None else []
        raise UnsupportedError(
            f"accelerate does not say what it would start{': ' + said[0] if said else ''}. Check the options with "
            "`accelerate launch --help`, or use torchrun."
        ) from None


_QUIET = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_LOG_LEVEL": "error"}
