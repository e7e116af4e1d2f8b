"""The namespaces themselves: for an ordinary user, on file systems that overlayfs does not like, and where refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, no_kernel_isolation
from foretell import gpus, namespaces
from foretell.cli.main import BUG, main
from foretell.errors import UnsupportedError
from foretell.jobs import CaptureOptions, CaptureResult, Job, changes
from foretell.runs import contained, find_torch, launch
from foretell.runs.environment import private_cache

from .conftest import HERE, state_of

NAMESPACES = Path(namespaces.__file__).parent
USER = 12345
"""An identity that nobody has."""


def contained_lines(*before: str, python: str, folder: Path, command: str) -> list[str]:
    """`command` by a shell in namespaces of its own, started through the words of `before`."""
    program = folder / "namespaces" / "__main__.py"
    words = [python, str(folder / "start_contained.py"), str(program), str(folder / "capture")]
    done = subprocess.run(
        [*before, *words, str(folder / "work"), "/bin/sh", "-c", command], capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def answers(lines: list[str], *before: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for line in lines:
        if line.startswith("answer "):
            merged |= json.loads(line.removeprefix("answer "))
    if "failed" in merged:
        no_kernel_isolation(merged["failed"], *before)
    return merged


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not one of pytest's, which only their owner may enter."""
    with tempfile.TemporaryDirectory(prefix="test-namespaces-") as name:
        path = Path(name)
        path.chmod(0o755)
        shutil.copytree(NAMESPACES, path / "namespaces", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(HERE / "start_contained.py", path)
        (path / "capture").mkdir()
        (path / "work" / "old").mkdir(parents=True)
        (path / "work" / "mine").write_text("mine\n")
        (path / "work" / "old" / "inner").write_text("mine\n")
        yield path


# --- an ordinary user -------------------------------------------------------------------------------------------------


@pytest.fixture
def as_user(folder: Path) -> list[str]:
    """The words that start a program as somebody else, who owns the folder."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user (setpriv)")
    words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "env", "PATH=/usr/bin:/bin"]
    if subprocess.run([*words, "test", "-r", str(folder)], capture_output=True).returncode != 0:
        pytest.skip(f"other users cannot enter {folder}")
    for path in (folder / "capture", folder / "work", *(folder / "work").rglob("*")):
        os.chown(path, USER, USER)
    return words


@pytest.fixture
def system_python(as_user: list[str]) -> str:
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 10))"
        tried = subprocess.run([*as_user, python, "-c", code], capture_output=True)
        if tried.returncode == 0:
            return python
    pytest.skip("no Python 3.10 or newer that another user may run")


def test_an_ordinary_user_writes_to_layers_as_well(folder: Path, as_user: list[str], system_python: str) -> None:
    before = state_of(folder / "work")
    command = "echo yours > mine && rm old/inner && mkdir new && echo x > new/x && mv new newer && cat newer/x && id -u"
    lines = contained_lines(*as_user, python=system_python, folder=folder, command=command)
    assert answers(lines, *as_user)["exit_status"] == 0, lines
    assert {"x", str(USER)} <= set(lines)
    work = folder / "work"
    changed = [f"write {work}/mine", f"write {work}/newer/x", f"delete {work}/old/inner"]
    assert [line for line in lines if line.startswith(("write ", "delete "))] == changed
    assert lines[-1] == "left writes.jsonl"
    assert state_of(folder / "work") == before


def test_an_ordinary_user_may_write_where_the_folder_belongs_to_another_group(
    folder: Path, as_user: list[str], system_python: str
) -> None:
    """Overlayfs in a user namespace cannot copy what belongs to unknown groups."""
    for path in (folder / "work", *(folder / "work").rglob("*")):
        os.chown(path, USER, USER + 1)
    before = state_of(folder / "work")
    command = "echo yours > mine && echo new > old/new && rm old/inner && cat mine old/*"
    lines = contained_lines(*as_user, python=system_python, folder=folder, command=command)
    assert answers(lines, *as_user)["exit_status"] == 0, lines
    assert {"yours", "new"} <= set(lines)
    assert state_of(folder / "work") == before


def readable_by_others(paths: list[Path], hold: Path) -> list[str]:
    """Words that run a program where other users may enter the folders above these paths, which then have nothing
    else in them: an environment may be in /root."""
    closed = [[each for each in path.parents if not each.stat().st_mode & 0o001] for path in paths]
    commands = []
    for number, folder in enumerate({folders[-1]: None for folders in closed if folders}):
        held = hold / str(number)
        held.mkdir()
        commands += [f"mount --bind {folder} {held}", f"mount -t tmpfs -o mode=755 t {folder}"]
        for path in paths:
            if folder in path.parents:
                commands += [f"mkdir -p {path}", f"mount --bind {held / path.relative_to(folder)} {path}"]
        commands.append(f"umount {held}")
    return in_mounts("; ".join(commands) or "true")


TRAIN = """
import torch
open("mine", "w").write("yours")
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(4):
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    optimizer.step()
torch.save(model.state_dict(), "old/model.pt")
"""


def test_an_ordinary_user_trains_and_nothing_is_changed(folder: Path, as_user: list[str]) -> None:
    torch = find_torch(sys.executable)
    if torch is None or torch.cuda is None:
        pytest.skip("torch is not installed, or has no CUDA")
    (folder / "work" / "train.py").write_text(TRAIN)
    (folder / "hold").mkdir()
    before = state_of(folder / "work")
    environment = [ROOT, Path(sys.base_prefix), torch.folder.parents[3]]
    words = [*readable_by_others(environment, folder / "hold"), *as_user, "env", f"HOME={folder / 'work'}"]
    words += [sys.executable, "-m", "foretell", "run", "--steps", "all", "--json", "-", "train.py"]
    done = subprocess.run(words, cwd=folder / "work", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    if result["isolation"]["mode"] != "kernel":
        no_kernel_isolation(result["isolation"]["reason"], *as_user)
    assert result["peak"]["reserved_bytes"] > 0
    assert {f"{folder}/work/mine", f"{folder}/work/old/model.pt"} <= set(result["redirected_writes"])
    assert {name: state for name, state in state_of(folder / "work").items() if ".cache" not in name} == before


FORBIDDEN = (
    "touch /etc/new", "touch /new", "echo x > /proc/sys/kernel/hostname", "mount -t tmpfs x /mnt", "umount /proc/sys",
    "ls /proc/1/cwd/", "ls /proc/1/root/", "mount -o remount,rw /sys",
)  # fmt: skip


def test_an_ordinary_user_gains_no_rights(folder: Path, as_user: list[str], system_python: str) -> None:
    lines = contained_lines(*as_user, python=system_python, folder=folder, command=_each_of(FORBIDDEN))
    check_forbidden(lines, *as_user)


def test_root_keeps_no_way_out(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is about root")
    devices = ("mknod disk b 8 0", "chroot /proc/1/root true", "nsenter -t 1 -m true", "ip link set lo down")
    commands = (*(each for each in FORBIDDEN if "touch" not in each), *devices)
    check_forbidden(contained_lines(python=sys.executable, folder=folder, command=_each_of(commands)))


def _each_of(commands: tuple[str, ...]) -> str:
    tried = [f"({each}) >/dev/null 2>&1 && echo 'allowed {each}'" for each in commands]
    return "; ".join([*tried, "kill -9 1", "echo alive"])


def check_forbidden(lines: list[str], *before: str) -> None:
    answers(lines, *before)
    assert [line for line in lines if line.startswith("allowed")] == []
    assert "alive" in lines  # the first process of a namespace cannot be killed from inside


# --- file systems -----------------------------------------------------------------------------------------------------


def in_mounts(commands: str) -> list[str]:
    """Words that run a program after these commands, in a mount namespace where they may mount."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can mount file systems for a test (unshare)")
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{commands}; exec "$@"', "sh"]


def overlay(target: Path, layers: Path) -> str:
    for name in ("upper", "work"):
        (layers / name).mkdir(parents=True)
    return f"mount -t overlay o -o lowerdir={target},upperdir={layers}/upper,workdir={layers}/work {target}"


def test_layers_are_in_memory_where_the_scratch_folder_is_on_an_overlay(folder: Path) -> None:
    """As in most containers."""
    before = in_mounts(overlay(folder / "capture", folder / "layers"))
    lines = contained_lines(*before, python=sys.executable, folder=folder, command="echo yours > mine && cat mine")
    found = answers(lines)
    assert (found.get("is_in_memory"), found.get("exit_status")) == (True, 0), lines
    assert "yours" in lines
    assert f"write {folder}/work/mine" in lines
    assert (folder / "work" / "mine").read_text() == "mine\n"


def test_what_cannot_be_covered_is_read_only_and_named(folder: Path) -> None:
    """Here two overlays on top of each other, as deep as the kernel allows."""
    old, later = folder / "work" / "old", folder / "work" / "this comes later, with a comma"
    later.mkdir()
    before = in_mounts(f"{overlay(old, folder / 'a')}; {overlay(old, folder / 'b')}; mount -t tmpfs t '{later}'")
    command = f"echo yours > '{later}/new' && cat '{later}/new' && echo yours > old/inner || cat old/inner"
    lines = contained_lines(*before, python=sys.executable, folder=folder, command=command)
    found = answers(lines)
    assert (found["read_only"], found["exit_status"]) == ([str(old)], 0), lines
    assert {"mine", "yours", f"write {later}/new"} <= set(lines)


def test_a_working_folder_that_cannot_be_covered_is_not_isolated_by_the_kernel(folder: Path) -> None:
    work = folder / "work"
    before = in_mounts(f"{overlay(work, folder / 'a')}; {overlay(work, folder / 'b')}")
    lines = contained_lines(*before, python=sys.executable, folder=folder, command="true")
    assert lines[0] == f'answer {{"failed": "overlayfs cannot cover the file system of {work}"}}'


def test_an_error_of_foretells_own_is_a_bug_and_not_a_refusal_by_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = contained.specification
    monkeypatch.setattr(contained, "specification", lambda *given: {**told(*given), "writable": [7.0]})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "train.py").write_text("")
    words = ["run", "--isolation", "auto", "--gpu", "rtx-3060", "--quiet", str(tmp_path / "train.py")]
    code = main(words)
    said = capsys.readouterr().err
    if code != BUG:
        no_kernel_isolation(said)
    assert "internal error: RuntimeError: in the kernel's isolation: TypeError" in said
    (traceback,) = tmp_path.glob("foretell-*.txt")
    assert "namespaces/root.py" in traceback.read_text()


def test_files_in_shared_memory_can_be_read_and_are_not_changed(folder: Path) -> None:
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm") as file:
        file.write("a dataset\n")
        file.flush()
        command = f"cat {file.name}; echo yours > {file.name}; cat {file.name}; echo new > /dev/shm/test-namespaces"
        lines = contained_lines(python=sys.executable, folder=folder, command=command)
        assert answers(lines)["exit_status"] == 0
        assert lines.index("a dataset") < lines.index("yours")
        assert Path(file.name).read_text() == "a dataset\n"
    assert not Path("/dev/shm/test-namespaces").exists()


def test_a_mount_below_the_working_folder_is_covered_too(folder: Path) -> None:
    inner = folder / "work" / "old"
    before = in_mounts(f"mount -t tmpfs t {inner} && echo real > {inner}/file")
    command = "echo yours > old/file && cat old/file && rm mine"
    lines = contained_lines(*before, python=sys.executable, folder=folder, command=command)
    assert answers(lines)["exit_status"] == 0, lines
    assert {f"write {inner}/file", f"delete {folder}/work/mine"} <= set(lines)
    assert (folder / "work" / "mine").exists()


@pytest.mark.parametrize("is_online", [False, True])
def test_only_caches_are_really_written_and_those_of_hubs_only_online(tmp_path: Path, is_online: bool) -> None:
    names = ("hub", "cache/foretell/compiled", "cache/foretell/other", "work", "capture")
    folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
    code = "import sys; [open(f'{folder}/new', 'w').write('x') for folder in sys.argv[1:]]"
    variables = {"HF_HOME": str(folders[0]), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    job = Job(
        command=(sys.executable, "-c", code, *map(str, folders)), gpu=gpus.find("rtx-3060"),
        environment=changes(variables), options=CaptureOptions(offline=not is_online),
    )  # fmt: skip
    result = launch(job, folders[-1])
    if result.isolation.mode != "kernel":
        no_kernel_isolation(result.isolation.reason)
    assert result.exit_status == 0
    assert [(folder / "new").exists() for folder in folders] == [is_online, True, False, False, True]


# --- a kernel that refuses --------------------------------------------------------------------------------------------


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "refuses.py"
    stub.write_text("import os, sys; os.write(int(sys.argv[2]), b'{\"failed\": \"Operation not permitted\"}\\n')")
    monkeypatch.setattr(contained, "NAMESPACES", stub)


def run_nothing(folder: Path, **options: Any) -> CaptureResult:
    (folder / "capture").mkdir()
    job = Job(command=(sys.executable, "-c", ""), gpu=gpus.find("rtx-3060"), options=CaptureOptions(**options))
    return launch(job, folder / "capture")


@pytest.mark.usefixtures("refused")
def test_where_the_kernel_refuses_python_takes_over_and_the_result_says_why(tmp_path: Path) -> None:
    isolation = run_nothing(tmp_path).isolation
    assert (isolation.mode, isolation.reason) == ("python", "Operation not permitted")


@pytest.mark.usefixtures("refused")
def test_where_the_kernel_refuses_what_was_asked_for_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"kernel is not possible here: Operation not permitted\. \w+"):
        run_nothing(tmp_path, isolation="kernel")


# --- foretell's own cache ---------------------------------------------------------------------------------------------


def test_a_relative_cache_home_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    found = private_cache("compiled", {"XDG_CACHE_HOME": "relative", "HOME": str(tmp_path / "home")})
    assert found == tmp_path / "home" / ".cache" / "foretell" / "compiled"
    assert not (tmp_path / "relative").exists()


@pytest.mark.parametrize("home", ["/nonexistent/home", "", "relative"])
def test_a_home_that_does_not_exist_is_not_created(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert private_cache("compiled", {"HOME": home}) is None
    assert not Path("/nonexistent").exists()
    assert list(tmp_path.iterdir()) == []


def test_the_cache_is_private_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / ".cache" / "foretell").mkdir(parents=True)
    (tmp_path / ".cache" / "foretell").chmod(0o777)
    before = os.umask(0)
    try:
        found = private_cache("compiled", {"HOME": str(tmp_path)})
    finally:
        os.umask(before)
    assert found is not None
    assert [oct(path.stat().st_mode & 0o777) for path in (found, found.parent)] == ["0o700", "0o700"]
