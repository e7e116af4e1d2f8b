"""What `--emit` prints is accepted, and understood, by the tools it is for.

`make emit-check` installs SkyPilot, dstack and the client of Kubernetes into an environment of their own; Slurm comes
with the system (apt-get install slurm-wlm). What is not installed is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import HANG_SECONDS
from emit_examples import EXAMPLE, example, settings_of
from foretell import gpus
from foretell.units import GIB

TIGHT = example(gpus.find("rtx-3060").total_bytes + 1, gpu="rtx-3060")
BOTH = pytest.mark.parametrize("estimate", [EXAMPLE, TIGHT], ids=["part", "whole"])
PODS = ("kubernetes", "kai", "hami", "volcano", "mig")


def needs(package: str, target: str) -> Any:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: make {target}")


# --- training frameworks ----------------------------------------------------------------------------------------------


@needs("transformers", "environment")
def test_trainer() -> None:
    names: dict[str, Any] = {}
    exec(settings_of("trainer", EXAMPLE), names)
    arguments = names["arguments"]
    assert arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps == 64


@needs("lightning", "environment")
def test_lightning() -> None:
    names: dict[str, Any] = {}
    exec(settings_of("lightning", EXAMPLE), names)
    assert names["batch_size"] * names["trainer"].accumulate_grad_batches == 64


@needs("accelerate", "environment")
def test_accelerate() -> None:
    names: dict[str, Any] = {}
    exec(settings_of("accelerate", EXAMPLE), names)
    assert names["batch_size"] * names["accelerator"].gradient_accumulation_steps == 64


# --- Ray --------------------------------------------------------------------------------------------------------------

ON_RAY = """
import json, os, sys
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
import ray
names = {}
exec(sys.stdin.read(), names)
ray.init(
    "local", num_cpus=1, num_gpus=2, object_store_memory=80 << 20, include_dashboard=False, _node_ip_address="127.0.0.1"
)

@ray.remote
def train():
    return ray.get_runtime_context().get_assigned_resources()["GPU"]

print("RESULT", json.dumps([names["ray_options"]["num_gpus"], ray.get(train.options(**names["ray_options"]).remote())]))
"""


@needs("ray", "ray")
@BOTH
def test_ray(estimate: Any) -> None:
    """In a process of its own: Ray leaves threads behind."""
    asked, assigned = _result(ON_RAY, settings_of("ray", estimate))
    assert asked == assigned


# --- Kubernetes -------------------------------------------------------------------------------------------------------


@needs("kubernetes", "emit-check")
@pytest.mark.parametrize("tool", PODS)
@BOTH
def test_pods_are_pods_for_the_client_of_kubernetes(tool: str, estimate: Any) -> None:
    from kubernetes import client

    if tool == "mig" and estimate is TIGHT:
        estimate = example(30 * GIB, gpu="a100-80gb:3g.40gb")
    document = yaml.safe_load(settings_of(tool, estimate))
    pod = client.V1Pod.from_json(json.dumps(document))
    assert json.loads(pod.to_json()) == document, "a key that the client does not know is lost"


# --- clouds -----------------------------------------------------------------------------------------------------------


@needs("dstack", "emit-check")
def test_dstack() -> None:
    from dstack._internal.core.models.configurations import parse_run_configuration

    task = {"type": "task", "commands": ["python train.py"], **yaml.safe_load(settings_of("dstack", EXAMPLE))}
    gpu = parse_run_configuration(task).resources.gpu
    assert gpu.vendor.value == "nvidia"
    assert (gpu.memory.min, gpu.memory.max) == (24.0, None)
    assert (gpu.count.min, gpu.count.max) == (1, 1)


WITH_SKYPILOT = """
import json, sys
import sky, yaml
task = sky.Task.from_yaml_config({"run": "python train.py", **yaml.safe_load(sys.stdin)})
print("RESULT", json.dumps(sorted(name for each in task.resources for name in each.accelerators)))
"""
CATALOGUE = {
    "metadata.csv": "GPU,MemoryGB,Manufacturer\nT4,16,nvidia\nA10G,24,nvidia\nA100-80GB,80,nvidia\nMI300X,192,amd\n",
    "accelerators.csv": "AcceleratorName,Clouds\nT4,AWS\nA10G,AWS\nA100-80GB,AWS\nMI300X,Azure\n",
}


@needs("sky", "emit-check")
def test_skypilot(tmp_path: Path) -> None:
    """With a catalogue that is made up here, because SkyPilot downloads its own when it is imported."""
    folder = tmp_path / ".sky" / "catalogs" / "v8" / "common"
    folder.mkdir(parents=True)
    for name, text in CATALOGUE.items():
        (folder / name).write_text(text)
    found = _result(WITH_SKYPILOT, settings_of("skypilot", EXAMPLE), {"HOME": str(tmp_path)})
    assert found == ["A100-80GB", "A10G"]


def _result(script: str, text: str, environment: dict[str, str] | None = None) -> Any:
    """Of a script in a process of its own, with the settings as its standard input."""
    run = subprocess.run(
        [sys.executable, "-c", script], input=text, capture_output=True, text=True, timeout=HANG_SECONDS,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    found = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    assert found, run.stderr[-4000:]
    return json.loads(found[0].removeprefix("RESULT "))


# --- Slurm ------------------------------------------------------------------------------------------------------------

SLURM = ("slurmctld", "slurmd", "sbatch", "sinfo")
SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
GresTypes=gpu,shard
SlurmdParameters=config_overrides
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 Gres=gpu:a100:2,shard:158
PartitionName=all Nodes=node Default=YES State=UP
"""
GRES_CONF = """
NodeName=node Name=gpu Type=a100 File=/dev/null
NodeName=node Name=gpu Type=a100 File=/dev/zero
NodeName=node Name=shard Count=158
"""
"""Two cards of 79 GiB, a shard for each GiB."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which `sbatch` finds a site with one node."""
    if os.getuid() != 0 or not all(map(shutil.which, SLURM)):
        pytest.skip("Slurm is not installed, or this user may not start it: apt-get install slurm-wlm, as root")
    folder = tmp_path_factory.mktemp("slurm")
    host = socket.gethostname().partition(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(SLURM_CONF.format(host=host, folder=folder, ports=_free_ports(2)))
    (folder / "gres.conf").write_text(GRES_CONF)
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    daemons = [
        subprocess.Popen([*command, "-D", "-f", str(conf)], stdout=file, stderr=file)
        for command in (["slurmctld", "-i"], ["slurmd", "-N", "node"])
        for file in [(folder / f"{command[0]}.log").open("w")]
    ]
    try:
        deadline = time.monotonic() + HANG_SECONDS
        while "idle" not in _run(["sinfo", "--noheader", "-o", "%T"], environment).stdout:
            logs = [path.read_text()[-2000:] for path in folder.glob("*.log")]
            assert time.monotonic() < deadline, logs
            assert all(daemon.poll() is None for daemon in daemons), logs
        yield environment
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait(HANG_SECONDS)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _run(command: list[str], environment: dict[str, str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, input=text, capture_output=True, text=True, timeout=HANG_SECONDS)


@BOTH
def test_slurm(estimate: Any, slurm: dict[str, str]) -> None:
    script = f"#!/bin/sh\n{settings_of('slurm', estimate)}\npython train.py\n"
    tried = _run(["sbatch", "--test-only"], slurm, script)
    assert tried.returncode == 0, tried.stderr
    assert "to start at" in tried.stderr


def test_slurm_would_refuse_more_shards_than_a_card_has(slurm: dict[str, str]) -> None:
    """Which is why they are not asked for; and `--test-only` does look at them."""
    assert _run(["sbatch", "--test-only"], slurm, "#!/bin/sh\n#SBATCH --gres=shard:80\ntrue\n").returncode != 0
    largest = settings_of("slurm", example(79 * GIB))
    assert "shard:79" in largest
    assert _run(["sbatch", "--test-only"], slurm, f"#!/bin/sh\n{largest}\ntrue\n").returncode == 0
