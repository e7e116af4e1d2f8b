"""Fixtures: programs that write, a server that receives, and one run of the writers and senders for each isolation."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
SOURCES = {
    "write_c": ("cc", "c", '#include <stdio.h>\nint main(int c, char **v) { FILE *f = fopen(v[1], "w"); '
                'return !f || c < 2 || fputs("yours", f) < 0 || fclose(f); }\n'),
    "write_cpp": ("c++", "cc", "#include <fstream>\nint main(int, char **v) { std::ofstream(v[1]) << \"yours\"; }\n"),
    "write_rust": ("rustc", "rs", "use std::{env, fs};\n"
                   'fn main() { fs::write(env::args().nth(1).unwrap(), "yours").unwrap(); }\n'),
}  # fmt: skip


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs in C, C++ and Rust; those whose compiler is missing are not there."""
    folder = tmp_path_factory.mktemp("binaries")
    for name, (compiler, suffix, source) in SOURCES.items():
        if shutil.which(compiler):
            file = folder / f"{name}.{suffix}"
            file.write_text(source)
            subprocess.run([compiler, "-o", folder / name, file], check=True, capture_output=True)
    return folder


@dataclass
class Server:
    """Listens on the machine's own loopback and Unix sockets, and keeps what arrives."""

    folder: Path
    received: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        tcp, self._udp = _same_port()
        self.port = tcp.getsockname()[1]
        unix, abstract = (socket.socket(socket.AF_UNIX) for _ in range(2))
        self.path = str(self.folder / "s")
        unix.bind(self.path)
        abstract.bind(f"\0{self.path}")
        self._listening = [tcp, unix, abstract]
        for each in self._listening:
            each.listen()
            threading.Thread(target=self._accept, args=(each,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                self.received.append(connection.recv(1 << 16))
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")

    def everything(self) -> list[bytes]:
        """Also the datagrams that wait: they are there when the sender has ended."""
        self._udp.setblocking(False)
        while True:
            try:
                self.received.append(self._udp.recv(1 << 16))
            except BlockingIOError:
                return self.received

    def close(self) -> None:
        for each in (*self._listening, self._udp):
            each.close()


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("s"))
    yield made
    made.close()


def _same_port() -> tuple[socket.socket, socket.socket]:
    """A TCP and a UDP socket; the port that one gets may be taken for the other."""
    taken: list[socket.socket] = []
    while True:
        tcp, udp = socket.socket(socket.AF_INET), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        tcp.bind(("127.0.0.1", 0))
        try:
            udp.bind(tcp.getsockname())
        except OSError:
            taken += [tcp, udp]  # held meanwhile, so that the next try gets another one
            continue
        for each in taken:
            each.close()
        return tcp, udp


State = dict[str, tuple[Any, ...]]


def state_of(folder: Path) -> State:
    """Everything about the files of a folder that a program could change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        name = str(path.relative_to(folder))
        found[name] = (oct(info.st_mode), info.st_uid, info.st_nlink, info.st_mtime_ns, info.st_ino, content)
    return found


MakeCanaries = Callable[[Path], State]


@pytest.fixture(scope="session")
def make_canaries() -> MakeCanaries:
    from .writers import WRITERS

    def make(folder: Path) -> State:
        for name in WRITERS:
            (folder / name / "old").mkdir(parents=True)
            (folder / name / "mine").write_text("mine")
            (folder / name / "old" / "inner").write_text("mine")
        return state_of(folder)

    return make
