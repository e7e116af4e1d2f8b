"""Whoever sends: nothing leaves the run in kernel isolation, not even to the machine's own loopback."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from conftest import no_kernel_isolation
from foretell import gpus
from foretell.jobs import CaptureOptions, CaptureResult, Job
from foretell.records import IsolationMode
from foretell.runs import OUTPUT, launch

from .conftest import HERE, Server
from .senders import SENDERS
from .test_writers import documented

NAMES = {sender.__name__ for sender in SENDERS}


def send(mode: IsolationMode, server: Server, folder: Path, **options: bool) -> tuple[CaptureResult, set[str]]:
    """The result, and the senders that think they have sent."""
    capture = CaptureOptions(isolation=mode, stdout="file", **options)  # type: ignore[arg-type]
    words = (sys.executable, str(HERE / "senders.py"), str(server.port), server.path)
    result = launch(Job(command=words, gpu=gpus.find("rtx-3060"), options=capture), folder)
    output = (folder / OUTPUT).read_text()
    said = {name: how for how, name in re.findall(r"^((?:not )?sent) (\w+)", output, re.MULTILINE)}
    assert set(said) == NAMES, output
    return result, {name for name, how in said.items() if how == "sent"}


def received(server: Server) -> set[str]:
    """By the path each sender puts into its message."""
    found = b"\n".join(server.everything()).decode()
    return {name for name in NAMES if f"/{_PATHS.get(name, name.removeprefix('by_'))}" in found}


_PATHS = {"by_http_client": "http.client", "by_unix_socket": "unix", "by_abstract_socket": "abstract"}


def test_nothing_is_sent_in_kernel_isolation(server: Server, tmp_path: Path) -> None:
    result, sent = send("auto", server, tmp_path)  # type: ignore[arg-type]
    if result.isolation.mode != "kernel":
        no_kernel_isolation(result.isolation.reason)
    assert server.everything() == []
    assert sent == {"by_udp"}, "a datagram is on its way to nobody"


def test_with_online_the_network_is_the_machines(server: Server, tmp_path: Path) -> None:
    result, _ = send("auto", server, tmp_path, offline=False)  # type: ignore[arg-type]
    assert result.isolation.is_online
    assert {"by_urllib", "by_socket", "by_udp"} <= received(server)


def test_the_docs_list_exactly_the_senders_that_python_does_not_hold(server: Server, tmp_path: Path) -> None:
    send("python", server, tmp_path)
    arrived = received(server)
    missing = set() if shutil.which("curl") else {"by_curl"}
    assert arrived == documented("send") - missing
