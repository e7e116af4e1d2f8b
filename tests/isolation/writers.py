"""Everything that writes, deletes or renames files, each on a canary of its own: a script for `foretell run`.

    writers.py FOLDER BINARIES

FOLDER/<name>/ holds the canary `mine` with the text "mine". Every writer changes something there and looks whether the
script itself sees the change. Prints `did NAME`, or `left out NAME: REASON` where a program or package is missing.
"""

from __future__ import annotations

import ctypes
import io
import os
import shutil
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

WRITERS: dict[str, Callable[[Path], object]] = {}
BINARIES = Path(sys.argv[2] if __name__ == "__main__" else "")


class LeftOut(Exception):
    """Something that is needed is not installed."""


def writer(function: Callable[[Path], object]) -> Callable[[Path], object]:
    WRITERS[function.__name__] = function
    return function


def shell(command: str, folder: Path) -> None:
    subprocess.run(command, shell=True, check=True, cwd=folder, capture_output=True)


def module(name: str) -> object:
    try:
        return __import__(name)
    except ImportError:
        raise LeftOut(f"{name} is not installed") from None


def program(name: str) -> str:
    found = shutil.which(name, path=f"{BINARIES}:{os.environ['PATH']}")
    if found is None:
        raise LeftOut(f"{name} is not there")
    return found


# --- Python -----------------------------------------------------------------------------------------------------------


@writer
def open_for_writing(folder: Path) -> None:
    (folder / "mine").write_text("yours")
    assert (folder / "mine").read_text() == "yours"


@writer
def file_io(folder: Path) -> None:
    with io.FileIO(str(folder / "mine"), "w") as file:
        file.write(b"yours")


@writer
def posix_open(folder: Path) -> None:
    import posix

    descriptor = posix.open(str(folder / "mine"), os.O_WRONLY | os.O_TRUNC)
    posix.write(descriptor, b"yours")
    posix.close(descriptor)


@writer
def posix_unlink(folder: Path) -> None:
    import posix

    posix.unlink(str(folder / "mine"))


@writer
def mknod(folder: Path) -> None:
    os.mknod(folder / "new")


@writer
def mkfifo(folder: Path) -> None:
    os.mkfifo(folder / "new")


@writer
def fchmod(folder: Path) -> None:
    with open(folder / "mine") as file:
        os.fchmod(file.fileno(), 0o600)


@writer
def utime_of_a_descriptor(folder: Path) -> None:
    with open(folder / "mine") as file:
        os.utime(file.fileno(), (1, 1))


@writer
def rmtree(folder: Path) -> None:
    shutil.rmtree(folder)
    assert not folder.exists()
    folder.mkdir()
    assert os.listdir(folder) == []


@writer
def rename_of_a_folder(folder: Path) -> None:
    (folder / "old").rename(folder / "renamed")
    assert (folder / "renamed" / "inner").read_text() == "mine"
    assert not (folder / "old").exists()


@writer
def link(folder: Path) -> None:
    os.link(folder / "mine", folder / "also")
    (folder / "also").write_text("yours")


@writer
def memory_map(folder: Path) -> None:
    import mmap

    with open(folder / "mine", "r+b") as file, mmap.mmap(file.fileno(), 4) as mapped:
        mapped[:] = b"your"


@writer
def ctypes_open(folder: Path) -> None:
    libc = ctypes.CDLL(None)
    descriptor = libc.open(os.fsencode(folder / "mine"), os.O_WRONLY | os.O_TRUNC)
    libc.write(descriptor, b"yours", 5)
    libc.close(descriptor)


# --- sqlite -----------------------------------------------------------------------------------------------------------


def _fill(connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("create table t (x)")
        connection.execute("insert into t values (1)")
    connection.close()


@writer
def sqlite_connect(folder: Path) -> None:
    _fill(sqlite3.connect(folder / "new.db"))


@writer
def sqlite_dbapi2(folder: Path) -> None:
    _fill(sqlite3.dbapi2.connect(folder / "new.db"))


@writer
def sqlite_uri(folder: Path) -> None:
    _fill(sqlite3.connect(f"file:{folder}/new.db", uri=True))


@writer
def sqlite_connection_class(folder: Path) -> None:
    _fill(sqlite3.Connection(str(folder / "new.db")))


@writer
def sqlite_attach(folder: Path) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(f"attach '{folder}/new.db' as other")
    connection.execute("create table other.t (x)")
    connection.close()


# --- torch and its friends, in C++ and Rust ---------------------------------------------------------------------------


@writer
def torch_save(folder: Path) -> None:
    import torch

    torch.save({"x": torch.ones(3)}, folder / "mine")
    assert torch.load(folder / "mine")["x"].tolist() == [1, 1, 1]


@writer
def torch_save_of_a_large_model(folder: Path) -> None:
    """Which has no values, and takes no space."""
    import torch

    torch.save(torch.empty(1 << 28, device="cuda"), folder / "mine")
    state = (folder / "mine").stat()
    assert state.st_size > 1 << 30
    assert state.st_blocks * 512 < 64 << 20
    assert torch.load(folder / "mine", map_location="cpu").shape == (1 << 28,)


@writer
def torch_serialization_save(folder: Path) -> None:
    import torch

    torch.serialization.save({"x": torch.ones(3)}, str(folder / "mine"))


@writer
def script_module_save(folder: Path) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(folder / "mine"))


@writer
def from_file_shared(folder: Path) -> None:
    import torch

    torch.from_file(str(folder / "new"), shared=True, size=4).fill_(1.0)


@writer
def profiler_export(folder: Path) -> None:
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(2).sum()
    profile.export_chrome_trace(str(folder / "mine"))


@writer
def torchvision_write_png(folder: Path) -> None:
    import torch

    module("torchvision")
    from torchvision.io import write_png

    write_png(torch.zeros(3, 4, 4, dtype=torch.uint8), str(folder / "mine"))


@writer
def safetensors_save(folder: Path) -> None:
    import torch

    module("safetensors")
    from safetensors.torch import load_file, save_file

    save_file({"x": torch.ones(3)}, str(folder / "new.safetensors"))
    assert load_file(str(folder / "new.safetensors"))["x"].tolist() == [1, 1, 1]


@writer
def tokenizers_save(folder: Path) -> None:
    module("tokenizers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    made = folder / "made" / "by the script"
    made.mkdir(parents=True)
    tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    tokenizer.save(str(folder / "mine"))
    tokenizer.save(str(made / "tokenizer.json"))


@writer
def cv2_imwrite(folder: Path) -> None:
    import numpy

    cv2 = module("cv2")
    cv2.imwrite(str(folder / "new.png"), numpy.zeros((4, 4, 3), dtype="uint8"))  # type: ignore[attr-defined]


@writer
def pyarrow_parquet(folder: Path) -> None:
    arrow = module("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"x": [1]}), str(folder / "mine"))  # type: ignore[attr-defined]


@writer
def numpy_memmap(folder: Path) -> None:
    import numpy

    numpy.memmap(folder / "new", dtype="float32", mode="w+", shape=(4,))[:] = 1


# --- other programs ---------------------------------------------------------------------------------------------------


@writer
def shell_redirection(folder: Path) -> None:
    shell("echo yours > mine", folder)
    assert (folder / "mine").read_text() == "yours\n"


@writer
def shell_cp(folder: Path) -> None:
    shell("cp /bin/sh mine", folder)


@writer
def shell_rm(folder: Path) -> None:
    assert os.system(f"rm -rf '{folder}/mine' '{folder}/old'") == 0
    assert os.listdir(folder) == []


@writer
def shell_mv(folder: Path) -> None:
    shell("mv old renamed && mv mine renamed/", folder)


@writer
def shell_reads_what_the_script_wrote(folder: Path) -> None:
    (folder / "new").write_text("written")
    assert subprocess.run(["cat", folder / "new"], capture_output=True, check=True).stdout == b"written"


@writer
def git_commit(folder: Path) -> None:
    git = f"'{program('git')}' -c user.name=a -c user.email=a@example.org"
    shell(f"'{program('git')}' init -q . && {git} add mine && {git} commit -qm yours", folder)


@writer
def c_program(folder: Path) -> None:
    subprocess.run([program("write_c"), folder / "mine"], check=True)


@writer
def cpp_program(folder: Path) -> None:
    subprocess.run([program("write_cpp"), folder / "mine"], check=True)


@writer
def rust_program(folder: Path) -> None:
    subprocess.run([program("write_rust"), folder / "mine"], check=True)


@writer
def python_without_the_environment(folder: Path) -> None:
    code = f"open({str(folder / 'mine')!r}, 'w').write('yours')"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, env={})


@writer
def daemon(folder: Path) -> None:
    """Has left the script's session, and writes when its parent has gone."""
    shell("setsid env -i sh -c 'echo yours > mine; echo > done' & wait", folder)


def main() -> None:
    import torch

    torch.ones(1).cuda()
    for name, function in WRITERS.items():
        try:
            function(Path(sys.argv[1]) / name)
            print(f"did {name}", flush=True)
        except LeftOut as reason:
            print(f"left out {name}: {reason}", flush=True)
        except Exception as error:
            print(f"failed {name}: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
