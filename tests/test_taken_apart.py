"""Launchers that are not started: what their options say of the ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretell.errors import UsageError
from foretell.runs.launchers import OneProcess
from foretell.runs.taken_apart import Apart, take_apart
from foretell.runs.worlds import ranks_of

RANK = "%LOCAL_RANK%"


@pytest.mark.parametrize(
    ("words", "size", "per_node", "own"),
    [
        (["torchrun", "--nnodes", "2", "--nproc-per-node", "8", "t.py", "-x"], 16, 8, ["t.py", "-x"]),
        (["torchrun", "--nnodes=1:4", "--nproc_per_node=gpu", "-m", "pkg.t"], 32, 8, ["-m", "pkg.t"]),
        (["python", "-m", "torch.distributed.run", "--nnodes=2", "t.py"], 2, 1, ["t.py"]),
        (
            ["-m", "torch.distributed.launch", "--nnodes=2", "--nproc_per_node=4", "t.py"],
            8, 4, ["t.py", f"--local-rank={RANK}"],
        ),
        (["deepspeed", "--num_nodes", "2", "--num_gpus", "4", "t.py"], 8, 4, ["t.py", f"--local_rank={RANK}"]),
        (["srun", "-n", "8", "python", "t.py"], 8, 8, ["python", "t.py"]),
        (["srun", "-N2", "-n16", "--mpi=pmix", "python", "t.py"], 16, 8, ["python", "t.py"]),
        (["srun", "--nodes=4", "--ntasks-per-node=8", "--exclusive", "./t.py"], 32, 8, ["./t.py"]),
        (["mpirun", "-np", "8", "python", "t.py"], 8, 8, ["python", "t.py"]),
        (["mpirun", "--allow-run-as-root", "-np", "8", "--map-by", "ppr:4:node", "-x", "A=1", "t.py"], 8, 4, ["t.py"]),
        (["mpiexec", "-n", "4", "--mca", "btl", "self", "python", "t.py"], 4, 4, ["python", "t.py"]),
    ],
)  # fmt: skip
def test_the_options_of_a_launcher_say_how_many_ranks_there_are(
    words: list[str], size: int, per_node: int, own: list[str]
) -> None:
    found = take_apart(words, {})
    assert isinstance(found, Apart)
    assert (found.world.size, found.world.per_node, list(found.words)) == (size, per_node, own)


@pytest.mark.parametrize("words", [["torchrun", "--standalone", "--nproc-per-node", "8", "t.py", "--tee", "3"],
                                   ["python", "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "pkg.t"]])
def test_ranks_that_torchrun_would_only_start_are_forks(words: list[str]) -> None:
    found = take_apart(words, {})
    assert isinstance(found, Apart)
    assert found.world.first == tuple(range(found.world.size))


@pytest.mark.parametrize("words", [["torchrun", "--nproc-per-node", "8", "--tee", "3", "t.py"],
                                   ["torchrun", "--nproc-per-node", "8", "--no-python", "./t.sh"],
                                   ["torchrun", "--nproc-per-node", "8", "t"], ["t.py"], ["bash", "run.sh"],
                                   ["deepspeed", "--num_gpus", "4", "t.py"], ["deepspeed", "t.py"],
                                   ["accelerate", "launch", "--num_processes", "8", "t.py"]])  # fmt: skip
def test_a_launcher_of_one_machine_is_started(words: list[str], tmp_path: Path) -> None:
    assert take_apart(words, {"HF_HOME": str(tmp_path)}) is None


def test_the_configuration_of_accelerate_counts_as_the_job_finds_it(tmp_path: Path) -> None:
    """A knob may have changed it."""
    pytest.importorskip("accelerate")
    (tmp_path / "c.yaml").write_text("num_machines: 1\nnum_processes: 4\ndistributed_type: FSDP\n")
    text = """
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, fsdp_auto_wrap_policy: SIZE_BASED_WRAP}
machine_rank: 0
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
    words = ["accelerate", "launch", "--config_file", "c.yaml", "t.py", "-x"]
    assert take_apart(words, dict(os.environ), cwd=tmp_path) is None
    found = take_apart(words, dict(os.environ), cwd=tmp_path, files=[(tmp_path / "c.yaml", text)])
    assert isinstance(found, Apart)
    assert (found.world.size, found.world.per_node, found.words) == (16, 8, ("t.py", "-x"))
    assert found.world.environment["FSDP_RESHARD_AFTER_FORWARD"] == "false"


def test_deepspeed_says_how_many_ranks_there_are_if_it_uses_all_cards() -> None:
    found = take_apart(["deepspeed", "t.py"], {}, world_size=16)
    assert isinstance(found, Apart)
    assert (found.world.size, found.world.per_node) == (16, 8)


@pytest.mark.parametrize("launcher", [["srun"], ["srun", "-n1"], ["mpirun", "-np", "1"], ["mpiexec"]])
def test_srun_and_mpirun_of_one_process_are_that_process(launcher: list[str]) -> None:
    found = take_apart([*launcher, "python", "t.py"], {})
    assert isinstance(found, OneProcess)
    assert found.words == ("python", "t.py")


def test_an_allocation_of_slurm_says_how_many_tasks_there_are() -> None:
    environ = {"SLURM_NTASKS": "16", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "8(x2)", "SLURM_JOB_ID": "77"}
    found = take_apart(["srun", "python", "t.py"], environ)
    assert isinstance(found, Apart)
    assert (found.world.size, found.world.per_node) == (16, 8)
    assert found.world.environment["SLURM_JOB_ID"] == "77"


def test_some_ranks_of_what_a_launcher_would_start() -> None:
    found = take_apart(["torchrun", "--nproc-per-node", "4", "t.py"], {}, ranks="0,3")
    assert isinstance(found, Apart)
    assert (found.world.size, found.world.first, found.world.are_roles_wanted) == (4, (0, 3), False)


def test_a_world_size_makes_ranks_of_a_script() -> None:
    found = take_apart(["t.py"], {}, world_size=1024)
    assert isinstance(found, Apart)
    assert (found.world.size, found.world.per_node, found.world.first) == (1024, 8, (0, 1023))
    assert found.world.are_roles_wanted


def test_machines_of_a_hostfile_have_the_slots_it_says(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# two\nworker-1 slots=4\nworker-2 slots=4\n")
    found = take_apart(["deepspeed", "--hostfile", str(file), "t.py"], {})
    assert isinstance(found, Apart)
    assert (found.world.size, found.world.per_node) == (8, 4)
    file.write_text("worker-1 four\n")
    with pytest.raises(UsageError, match="'worker-1 four' is not a line"):
        take_apart(["deepspeed", f"--hostfile={file}", "t.py"], {})
    with pytest.raises(UsageError, match="No such file"):
        take_apart(["deepspeed", f"--hostfile={file}.gone", "t.py"], {})


@pytest.mark.parametrize(
    ("text", "message"),
    [("0;1", "must be auto, all or a list"), ("8", "the 8 ranks are numbered 0 to 7"), ("3-1", "3-1 is empty")],
)
def test_a_list_of_ranks_that_is_none_is_a_mistake_of_usage(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        take_apart(["t.py"], {}, world_size=8, ranks=text)


def test_machines_that_would_not_be_full_are_a_mistake_of_usage() -> None:
    with pytest.raises(UsageError, match=r"12 ranks cannot be started on machines of 8 GPUs.*--gpus-per-node 6"):
        take_apart(["t.py"], {}, world_size=12)
    found = take_apart(["srun", "-n", "12", "--ntasks-per-node", "8", "t.py"], {})
    assert isinstance(found, Apart)
    assert (found.world.size, found.world.per_node) == (12, 8)


def test_ranks_need_a_number_of_ranks() -> None:
    with pytest.raises(UsageError, match="Add --world-size N"):
        take_apart(["t.py"], {}, ranks="0")


def test_too_many_ranks_at_once_are_a_mistake_of_usage() -> None:
    with pytest.raises(UsageError, match="at most 64 can run"):
        take_apart(["t.py"], {}, world_size=1024, ranks="all")


def test_lists_of_ranks_have_ranges() -> None:
    assert ranks_of("0,64-66,7", 1024) == (0, 7, 64, 65, 66)
    assert ranks_of("auto", 1) == (0,)
