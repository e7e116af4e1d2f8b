from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import UnsupportedError, UsageError
from foretell.runs import command as commands
from foretell.runs.command import TorchInstall, find_torch, refuse_platform, refuse_torch, resolve
from foretell.runs.launchers import OneProcess, Ranks, processes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    """An empty folder to be in, with a torch that passes."""
    monkeypatch.chdir(tmp_path)
    cuda = TorchInstall(folder=tmp_path, version="2.15.0", cuda="13.2", is_rocm=False)
    monkeypatch.setattr(commands, "find_torch", lambda python: cuda)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return tmp_path


def fake_torch(site: Path, version_py: str, *libraries: str) -> None:
    (site / "torch" / "lib").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("raise AssertionError('torch must not be imported')")
    (site / "torch" / "version.py").write_text(version_py)
    for library in libraries:
        (site / "torch" / "lib" / library).touch()


def test_a_script_runs_with_this_python(folder: Path) -> None:
    (folder / "train.py").touch()
    command = resolve(["train.py", "--batch-size", "64"])
    assert command.argv == (sys.executable, "train.py", "--batch-size", "64")


def test_a_module_runs_with_this_python(folder: Path) -> None:
    assert resolve(["-m", "package.train", "-x"]).argv == (sys.executable, "-m", "package.train", "-x")


def test_a_folder_with_a_main_runs_and_one_without_is_refused(folder: Path) -> None:
    (folder / "job").mkdir()
    with pytest.raises(UsageError, match="job is a folder"):
        resolve(["job"])
    (folder / "job" / "__main__.py").touch()
    assert resolve(["job"]).argv == (sys.executable, "job")


def test_another_python_is_asked_for_its_own_torch(folder: Path) -> None:
    command = resolve([sys.executable, "train.py"])
    assert (command.argv, command.python) == ((sys.executable, "train.py"), sys.executable)


def test_a_console_script_belongs_to_the_python_in_its_first_line(folder: Path) -> None:
    script = folder / "trainer"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    assert resolve([str(script), "x.py"]).python == sys.executable


def test_a_command_that_is_not_python_is_not_asked_for_torch(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(commands, "find_torch", lambda python: None)
    assert resolve(["sh", "-c", "true"]).python is None


def test_a_missing_script_is_named_with_its_nearest_neighbour(folder: Path) -> None:
    (folder / "train.py").touch()
    with pytest.raises(UsageError, match=r"no such script: trian\.py.*Did you mean train\.py"):
        resolve(["trian.py"])


def test_a_missing_script_without_neighbours_lists_what_is_there(folder: Path) -> None:
    (folder / "finetune_everything.py").touch()
    with pytest.raises(UsageError, match=r"no such script: x\.py\..*contains finetune_everything\.py"):
        resolve(["x.py"])


def test_a_text_file_is_neither_script_nor_command(folder: Path) -> None:
    (folder / "run.sh").write_text("echo")
    with pytest.raises(UsageError, match=r"chmod \+x"):
        resolve(["./run.sh"])


@pytest.mark.parametrize("words", [[], ["-m"], ["--bogus", "x.py"]])
def test_nothing_to_run_is_a_mistake_of_usage(folder: Path, words: list[str]) -> None:
    with pytest.raises(UsageError):
        resolve(words)


@pytest.mark.parametrize("name", ["horovodrun", "colossalai"])
def test_launchers_of_their_own_kind_are_refused_with_what_one_process_would_tell(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r".* of a DDP job .*with FSDP, ZeRO"):
        processes([name, "-n", "4", "python", "train.py"], {})


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["torchrun", "--nproc_per_node", "8", "train.py"], 8),
        (["torchrun", "--nproc-per-node=2", "train.py"], 2),
        (["torchrun", "--nproc-per-node=gpu", "train.py"], 4),
        (["python", "-u", "-m", "torch.distributed.run", "--nproc_per_node=4", "train.py"], 4),
        (["-m", "torch.distributed.launch", "--nproc_per_node=4", "train.py"], 4),
        (["deepspeed", "train.py"], 4),
        (["deepspeed", "--num_gpus", "2", "train.py"], 2),
        (["accelerate", "launch", "--num_processes=4", "train.py"], 4),
        (["accelerate", "launch", "--num_processes", "2", "train.py"], 2),
    ],
)
def test_a_launcher_of_several_processes_starts_them_itself(words: list[str], count: int) -> None:
    """Among four cards."""
    assert processes(words, {}, gpus_per_node=4) == Ranks(count=count)


def test_a_number_of_processes_that_is_none_is_a_mistake_of_usage() -> None:
    with pytest.raises(UsageError, match="nproc-per-node=cpu"):
        processes(["/opt/bin/torchrun", "--nproc_per_node=cpu", "train.py"], {})


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["torchrun", "train.py", "--lr", "1"], ["train.py", "--lr", "1"]),
        (["torchrun", "--nproc_per_node=1", "train.py"], ["train.py"]),
        (["torchrun", "--nproc_per_node", "gpu", "train.py"], ["train.py"]),
        (["torchrun", "--standalone", "--nnodes=1:1", "--rdzv_backend", "c10d", "train.py"], ["train.py"]),
        (["torchrun", "-r", "3", "-m", "package.train", "-x"], ["-m", "package.train", "-x"]),
        (["torchrun", "--no-python", "bash", "run.sh"], ["bash", "run.sh"]),
        (["-m", "torch.distributed.run", "--master_port", "29501", "train.py"], ["train.py"]),
        (["-m", "torch.distributed.launch", "train.py", "-x"], ["train.py", "--local-rank=0", "-x"]),
        (["-m", "torch.distributed.launch", "--use_env", "train.py"], ["train.py"]),
    ],
)
def test_torchrun_of_one_process_is_that_process(words: list[str], own: list[str]) -> None:
    found = processes(words, {"WORLD_SIZE": "8"})  # which torchrun would set anew
    assert isinstance(found, OneProcess)
    assert list(found.words) == own
    ranks = {name: found.environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")}
    assert ranks == {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    assert int(found.environment["MASTER_PORT"]) > 0


def test_torchrun_of_one_process_runs_the_script_with_the_python_of_torchrun(folder: Path) -> None:
    (folder / "train.py").touch()
    python = folder / "python3"
    python.touch(mode=0o755)
    torchrun = folder / "torchrun"
    torchrun.write_text(f"#!{python}\n")
    torchrun.chmod(0o755)
    command = resolve([str(torchrun), "train.py", "--lr", "1"])
    assert (command.argv, command.python) == ((str(python), "train.py", "--lr", "1"), str(python))
    assert command.environment["WORLD_SIZE"] == "1"
    assert command.note == "torchrun has one process to start; it runs directly, with RANK=0 LOCAL_RANK=0 WORLD_SIZE=1"


def test_torchrun_without_a_script_or_with_a_missing_one_is_a_mistake_of_usage(folder: Path) -> None:
    with pytest.raises(UsageError, match="torchrun has nothing to run"):
        resolve(["torchrun", "--nproc_per_node=1"])
    with pytest.raises(UsageError, match=r"no such script: train\.py"):
        resolve(["torchrun", "train.py"])


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["accelerate", "launch", "train.py", "--num_workers", "4"], ["train.py", "--num_workers", "4"]),
        (["accelerate-launch", "--num-processes=1", "-m", "package.train"], ["-m", "package.train"]),
        (["-m", "accelerate.commands.launch", "--num_machines", "1", "train.py"], ["train.py"]),
    ],
)
def test_accelerate_launch_of_one_process_is_that_process(words: list[str], own: list[str]) -> None:
    found = processes(words, {"WORLD_SIZE": "1"})
    assert isinstance(found, OneProcess)
    assert list(found.words) == own


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.parametrize("precision", ["no", "fp16", "bf16"])
def test_the_environment_is_the_one_accelerate_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """Its own functions tell, without the process that they would start."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_simple_launcher_cmd_env

    monkeypatch.setattr(launch, "default_config_file", str(tmp_path / "missing"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    words = ["--num_processes", "1", "--mixed_precision", precision, "train.py", "--lr", "1"]
    arguments, *_ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
    command, variables = prepare_simple_launcher_cmd_env(arguments)
    found = processes(["accelerate", "launch", *words], {"HF_HOME": str(tmp_path)})
    assert isinstance(found, OneProcess)
    assert found.environment == {name: value for name, value in variables.items() if os.environ.get(name) != value}
    assert (sys.executable, *found.words) == tuple(command)


@pytest.mark.parametrize(
    "words",
    [
        ["train.py"],
        ["accelerate", "test"],
        ["accelerate", "launch", "--config_file", "x.yaml", "train.py"],
        ["accelerate", "launch", "--use_fsdp", "train.py"],
        ["accelerate", "launch", "--mixed_precision", "fp8", "train.py"],
        ["accelerate", "launch", "--dynamo_backend", "inductor", "train.py"],
    ],
)
def test_other_commands_of_one_process_run_as_they_are(words: list[str]) -> None:
    assert processes(words, {"WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize("variable", ["HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_accelerate_reads_its_configuration_itself(tmp_path: Path, variable: str) -> None:
    folders = {"HF_HOME": ".", "XDG_CACHE_HOME": "huggingface", "HOME": ".cache/huggingface"}
    folder = tmp_path / folders[variable] / "accelerate"
    folder.mkdir(parents=True)
    words, environ = ["accelerate", "launch", "train.py"], {variable: str(tmp_path)}
    assert processes(words, environ) is not None
    (folder / "default_config.yaml").touch()
    assert processes(words, environ) is None


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["--num_gpus", "1", "train.py", "--deepspeed"], ["train.py", "--local_rank=0", "--deepspeed"]),
        (["--num_gpus=1", "--no_local_rank", "--master_port", "29501", "train.py"], ["train.py"]),
        (["--num_accelerators=1", "--module", "package.train"], ["-m", "package.train", "--local_rank=0"]),
    ],
)
def test_deepspeed_on_one_gpu_is_that_process(words: list[str], own: list[str]) -> None:
    found = processes(("deepspeed", *words), {})
    assert isinstance(found, OneProcess)
    assert list(found.words) == own
    assert (found.environment["WORLD_SIZE"], found.environment["LOCAL_RANK"]) == ("1", "0")
    assert found.environment["MASTER_PORT"] == ("29501" if "29501" in words else "29500")


def test_a_world_of_several_ranks_in_the_environment_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="WORLD_SIZE=8"):
        processes(["train.py"], {"WORLD_SIZE": "8"})
    with pytest.raises(UnsupportedError, match=r"SLURM_STEP_NUM_TASKS=4 is set.*or set .*=1 and SLURM_PROCID=0"):
        processes(["train.py"], {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"})


@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_other_systems_than_linux_are_refused_by_name(system: str, name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        refuse_platform(system, "arm64")


def test_torch_is_judged_by_its_files_without_importing_it(tmp_path: Path, monkeypatch: Any) -> None:
    fake_torch(tmp_path, "__version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\nhip = None", "libtorch_cuda.so")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    torch = find_torch(sys.executable)
    assert torch == TorchInstall(folder=tmp_path / "torch", version="2.15.0+cu132", cuda="13.2", is_rocm=False)
    refuse_torch(torch, "python")


@pytest.mark.parametrize(
    ("version_py", "library", "message"),
    [
        ("__version__ = '2.15.0+cpu'\ncuda = None", "libtorch_cpu.so", "CPU-only build"),
        ("__version__ = '2.15.0'\ncuda = '13.2'", "libtorch_cpu.so", "CPU-only build"),
        ("__version__ = '2.15.0'\ncuda = None\nhip: Optional[str] = '6.4'", "libtorch_hip.so", "ROCm"),
        ("__version__ = '2.5.1+cu121'\ncuda = '12.1'", "libtorch_cuda.so", "too old"),
    ],
)
def test_builds_of_torch_that_cannot_do_are_refused(
    tmp_path: Path, monkeypatch: Any, version_py: str, library: str, message: str
) -> None:
    fake_torch(tmp_path, version_py, library)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(UnsupportedError, match=message):
        refuse_torch(find_torch(sys.executable), sys.executable)


def test_no_torch_says_what_to_install() -> None:
    with pytest.raises(UnsupportedError, match=r"not installed in /opt/python.*pip install torch"):
        refuse_torch(None, "/opt/python")
