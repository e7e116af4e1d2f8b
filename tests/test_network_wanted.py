"""A script that fails for want of the network is told so, with what it asked for and the option that helps."""

from __future__ import annotations

import socket
import urllib.error
from subprocess import CalledProcessError
from types import SimpleNamespace
from typing import Any

import pytest

from foretell.inside.guard.children import is_unobserved
from foretell.inside.guard.network import Network
from foretell.inside.patches import Patches


class OfflineModeIsEnabled(ConnectionError):
    """By this name huggingface_hub says that it may not use the network."""


def raised(function: Any, *args: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:
        function(*args)
    return caught.value


def from_pretrained(pretrained_model_name_or_path: str) -> None:
    try:
        raise OfflineModeIsEnabled("offline mode is enabled")
    except ConnectionError as error:
        raise OSError("We couldn't connect") from error


def test_a_hub_that_is_offline_is_named_with_the_repository() -> None:
    transformers = {**globals(), "__name__": "transformers.models.auto"}
    code = from_pretrained.__code__
    function = type(from_pretrained)(code, transformers)
    assert Network().wanted_by(raised(function, "bert-base-cased")) == "bert-base-cased from huggingface.co"


def load_dataset(path: str) -> None:
    raise ConnectionError(f"Couldn't reach '{path}' on the Hub (OfflineModeIsEnabled)")


def test_a_data_set_is_named_although_the_error_is_not_chained_to_that_of_the_hub() -> None:
    function = type(load_dataset)(load_dataset.__code__, {**globals(), "__name__": "datasets.load"})
    assert Network().wanted_by(raised(function, "cifar10")) == "cifar10 from huggingface.co"


def test_a_host_is_named_once_it_was_asked_for() -> None:
    network = Network()
    network._note("example.org")
    assert network.wanted_by(socket.gaierror(-3, "Temporary failure in name resolution")) == "example.org"
    assert network.wanted_by(urllib.error.URLError(OSError(101, "Network is unreachable"))) == "example.org"


def test_an_error_that_only_quotes_the_failures_is_about_the_first_host() -> None:
    """As torchvision raises it, after all mirrors of a data set have failed."""

    def getaddrinfo(host: str, port: int) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    sockets = SimpleNamespace(getaddrinfo=getaddrinfo, socket=type("socket", (), {"connect": print}))
    network = Network()
    network._watch(SimpleNamespace(patches=Patches()), sockets)  # type: ignore[arg-type]
    for host in ("first.example.org", "second.example.org", "localhost"):
        raised(sockets.getaddrinfo, host, 443)
    tried = "Error downloading x.gz:\nTried https://first.example.org/mnist/, got:\n<urlopen error>"
    assert network.wanted_by(RuntimeError(tried)) == "first.example.org"
    quoted = "could not fetch x.gz: [Errno -3] Temporary failure in name resolution"
    assert network.wanted_by(RuntimeError(quoted)) == "first.example.org"
    missing = RuntimeError("x.gz is missing")
    assert (network.wanted_by(missing), network.unreached()) == (None, "second.example.org")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Offline mode: run this script without TRANSFORMERS_OFFLINE first", "a download"),
        ("unset HF_HUB_OFFLINE", "a download"),
        ("the data of the offline policy is missing", None),
    ],
)
def test_a_script_that_saw_that_it_is_offline_wanted_a_download(text: str, wanted: str | None) -> None:
    assert Network().wanted_by(LookupError(text)) == wanted


@pytest.mark.parametrize("command", [["wget", "https://example.org/x.zip"], "curl http://me:key@example.org:80/x"])
def test_a_program_that_could_not_download_names_its_host(command: str | list[str]) -> None:
    assert Network().wanted_by(CalledProcessError(6, command)) == "example.org"
    assert Network().wanted_by(CalledProcessError(6, "curl http://localhost:80/x")) is None
    assert Network().wanted_by(CalledProcessError(1, ["make", "data"])) is None


@pytest.mark.parametrize("error", [ValueError("x"), FileNotFoundError(2, "x"), KeyError("huggingface.co")])
def test_another_failure_is_none_of_the_networks(error: BaseException) -> None:
    network = Network()
    network._note("example.org")
    assert network.wanted_by(error) is None


def test_loopback_is_not_the_network() -> None:
    network = Network()
    for host in ("localhost", "127.0.0.1", b"127.0.0.1", "::1", None):
        network._note(host)
    assert network.wanted_by(ConnectionRefusedError(111, "Connection refused")) is None


@pytest.mark.parametrize(
    ("words", "environment", "is_hidden"),
    [
        (["python", "-I", "train.py"], None, True),
        (["/usr/bin/python3.11", "-uE", "train.py"], None, True),
        (["python", "-S", "-m", "train"], None, True),
        (["python", "train.py", "-I"], None, False),
        (["python", "-c", "print('-I')"], None, False),
        (["python", "--check-hash-based-pycs", "default", "train.py"], None, False),
        (["bash", "-E"], {}, False),
        (["python", "train.py"], {}, True),
        (["python", "train.py"], {"FORETELL_CAPTURE": "{}", "PYTHONPATH": "x"}, False),
    ],
)
def test_a_python_that_ignores_its_environment_is_not_observed(words: Any, environment: Any, is_hidden: bool) -> None:
    assert is_unobserved(words, environment) is is_hidden
