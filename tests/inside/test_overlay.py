"""Nothing of the user's is overwritten, and the script sees what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HANG_SECONDS

from .conftest import BOOTSTRAP, Run

FILES = {"log.txt": "user\n", "old/a.txt": "a", "old/deep/b.txt": "b", "target/keep.txt": "keep"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link").symlink_to("target")
    return folder


def run(project: Path, code: str) -> list[str]:
    """Run the code in the project, check that it worked and that the project is as before; the redirected paths."""
    capture = project.parent / "capture"
    capture.mkdir()
    preamble = "import os, shutil, sys, glob, tempfile, subprocess\nfrom pathlib import Path\n"
    environment = {
        **os.environ,
        "PYTHONPATH": str(BOOTSTRAP),
        "FORETELL_CAPTURE": json.dumps({"directory": str(capture)}),
    }
    process = subprocess.run(
        [sys.executable, "-c", preamble + code],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert process.returncode == 0, process.stderr
    found = {str(path.relative_to(project)): path.read_text() for path in project.rglob("*") if path.is_file()}
    assert {name: text for name, text in found.items() if not name.startswith("link")} == FILES
    assert os.readlink(project / "link") == "target"
    journal = capture / f"journal-{(capture / 'main').read_text()}.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    paths = [line["path"] for line in lines if line["kind"] == "redirected_write"]
    assert len(paths) == len(set(paths))
    return [os.path.relpath(path, project) for path in paths]


def test_a_file_that_is_appended_to_is_copied_first(project: Path) -> None:
    code = """
with open("log.txt", "a") as file:
    assert file.name == "log.txt"
    file.write("more\\n")
assert open("log.txt").read() == "user\\nmore\\n"
with open("log.txt", "r+") as file:
    file.write("USER")
assert Path("log.txt").read_text() == "USER\\nmore\\n"
"""
    assert run(project, code) == ["log.txt"]


def test_a_deleted_folder_is_gone_and_can_be_made_anew(project: Path) -> None:
    run(
        project,
        """
shutil.rmtree("old")
assert not os.path.exists("old") and not os.path.exists("old/a.txt") and "old" not in os.listdir()
try:
    open("old/a.txt")
except FileNotFoundError as error:
    assert error.filename == "old/a.txt"
os.makedirs("old")
assert os.listdir("old") == []
Path("old/new.txt").write_text("new")
assert os.listdir("old") == ["new.txt"] and not os.path.exists("old/deep")
""",
    )


def test_a_file_is_moved_over_another(project: Path) -> None:
    run(
        project,
        """
Path("log.tmp").write_text("new")
os.replace("log.tmp", "log.txt")
assert open("log.txt").read() == "new" and not os.path.exists("log.tmp")
os.rename("log.txt", "log2.txt")
assert open("log2.txt").read() == "new" and not os.path.exists("log.txt")
os.rename("old", "older")
assert sorted(os.listdir("older")) == ["a.txt", "deep"] and not os.path.exists("old")
assert open("older/deep/b.txt").read() == "b"
""",
    )


def test_both_layers_are_listed_together(project: Path) -> None:
    run(
        project,
        """
Path("old/c.txt").write_text("c")
os.remove("old/a.txt")
assert sorted(os.listdir("old")) == ["c.txt", "deep"]
assert sorted(path.name for path in Path("old").iterdir()) == ["c.txt", "deep"]
assert sorted(glob.glob("old/**/*.txt", recursive=True)) == ["old/c.txt", "old/deep/b.txt"]
assert {name for _, _, names in os.walk("old") for name in names} == {"b.txt", "c.txt"}
with os.scandir("old") as entries:
    assert {(entry.name, entry.is_dir(), entry.path) for entry in entries} == {
        ("c.txt", False, "old/c.txt"), ("deep", True, "old/deep")}
""",
    )


def test_links_are_followed_in_either_layer(project: Path) -> None:
    run(
        project,
        """
Path("link/new.txt").write_text("via link")
assert Path("target/new.txt").read_text() == "via link" and sorted(os.listdir("link")) == ["keep.txt", "new.txt"]
os.symlink(os.path.abspath("target"), "latest")
assert Path("latest/new.txt").read_text() == "via link" and os.path.islink("latest")
os.remove("latest")
assert not os.path.lexists("latest") and os.path.exists("target/new.txt")
""",
    )


def test_errors_are_those_of_the_operating_system(project: Path) -> None:
    run(
        project,
        """
def raised(call):
    try:
        call()
    except OSError as error:
        return type(error).__name__
Path("log.txt").touch()
assert raised(lambda: open("log.txt", "x")) == "FileExistsError"
assert raised(lambda: open("nowhere/x", "w")) == "FileNotFoundError"
assert raised(lambda: open("log.txt/x", "w")) == "NotADirectoryError"
assert raised(lambda: open("missing", "r+")) == "FileNotFoundError"
assert raised(lambda: open("old", "w")) == "IsADirectoryError"
assert raised(lambda: os.mkdir("old")) == "FileExistsError"
assert raised(lambda: os.rmdir("old")) == "OSError"
assert raised(lambda: os.remove("missing")) == "FileNotFoundError"
assert raised(lambda: os.remove("old")) == "IsADirectoryError"
assert raised(lambda: os.rename("log.txt", "old")) == "IsADirectoryError"
assert raised(lambda: shutil.rmtree("missing")) == "FileNotFoundError"
""",
    )


def test_a_function_kept_as_a_class_attribute_does_not_become_a_method(project: Path) -> None:
    run(
        project,
        "class Files: open = open; stat = os.stat\nassert Files().open('log.txt').read() and Files().stat('old')",
    )


def test_a_new_folder_can_be_worked_in(project: Path) -> None:
    run(
        project,
        """
start = os.getcwd()
os.makedirs("runs/1")
os.chdir("runs/1")
assert os.getcwd() == start + "/runs/1"
Path("here.txt").write_text("here")
assert Path("../../log.txt").read_text() == "user\\n"
os.chdir("../..")
assert os.getcwd() == start and Path("runs/1/here.txt").read_text() == "here"
""",
    )


def test_python_children_share_the_view(project: Path) -> None:
    run(
        project,
        """
os.remove("old/a.txt")
Path("log.txt").write_text("changed")
code = "import os; assert open('log.txt').read() == 'changed' and not os.path.exists('old/a.txt'); open('child', 'w')"
subprocess.run([sys.executable, "-c", code], check=True)
assert os.path.exists("child")
""",
    )


def test_temporary_files_are_real_for_programs_that_are_not_python(project: Path) -> None:
    code = """
with tempfile.TemporaryDirectory(dir="/tmp") as folder:
    Path(folder, "source.c").write_text("x")
    assert subprocess.run(["cat", folder + "/source.c"], capture_output=True).stdout == b"x"
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
    file.write("atomic")
os.replace(file.name, "log.txt")
assert open("log.txt").read() == "atomic"
"""
    assert "log.txt" in run(project, code)


def test_a_copied_tree_and_a_moved_tree_are_whole(project: Path) -> None:
    run(
        project,
        """
shutil.copytree("old", "copy")
shutil.copy("log.txt", "copy/log.txt")
shutil.move("copy", "moved")
assert sorted(os.listdir("moved")) == ["a.txt", "deep", "log.txt"] and not os.path.exists("copy")
shutil.rmtree("moved")
assert not os.path.exists("moved")
""",
    )


def test_checkpoints_of_torch_and_safetensors_are_redirected_and_loaded_back(capture: Run, project: Path) -> None:
    for name in ("model.pt", "model.safetensors"):
        (project / name).write_bytes(b"the user's")
    captured = capture(
        """
        import torch
        from pathlib import Path
        torch.save({"weight": torch.arange(5)}, "model.pt")
        assert torch.load("model.pt")["weight"].tolist() == [0, 1, 2, 3, 4]
        torch.save(torch.ones(2), Path("new.pt"))
        assert torch.load(Path("new.pt"), mmap=True).tolist() == [1, 1]
        try:
            from safetensors.torch import load_file, save_file
        except ImportError:
            pass
        else:
            save_file({"weight": torch.ones(3)}, "model.safetensors")
            assert load_file("model.safetensors")["weight"].sum() == 3
        """,
        folder=project,
    ).check()
    assert (project / "model.pt").read_bytes() == (project / "model.safetensors").read_bytes() == b"the user's"
    assert not (project / "new.pt").exists()
    assert str(project / "model.pt") in {line["path"] for line in captured.lines("redirected_write")}


def test_a_big_checkpoint_takes_neither_disk_nor_memory_and_small_values_in_it_are_right(capture: Run) -> None:
    capture(
        """
        import os, torch
        def on_disk(path):
            assert os.path.getsize(path) > 512 << 20
            return os.stat(path).st_blocks * 512
        model = torch.nn.Linear(8192, 16384).cuda()                       # 512 MiB
        state = {"model": model.state_dict(), "step": torch.tensor(7), "order": torch.arange(1 << 20)}
        torch.save(state, "model.pt")
        assert on_disk("model.pt") < 32 << 20
        loaded = torch.load("model.pt", map_location="cpu")
        assert loaded["step"] == 7 and torch.equal(loaded["order"], torch.arange(1 << 20))
        assert loaded["model"]["weight"].shape == (16384, 8192)
        model.load_state_dict(loaded["model"])
        try:
            from safetensors.torch import load_file, save_file
        except ImportError:
            raise SystemExit(0)
        half = torch.arange(64, dtype=torch.float16)
        save_file({"a": half, "weight": model.weight, "b": torch.arange(3)}, "model.safetensors", {"format": "pt"})
        assert on_disk("model.safetensors") < 1 << 20
        loaded = load_file("model.safetensors")
        assert torch.equal(loaded["a"], half) and loaded["b"].tolist() == [0, 1, 2]
        assert loaded["weight"].shape == (16384, 8192)
        """,
    ).check()
