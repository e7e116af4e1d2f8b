"""Tells a failure for want of the network from others, and what was wanted: a host, or a repository of a hub."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Any

from ..capture import Capture

NETWORK_ERRORS = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ECONNREFUSED, errno.ETIMEDOUT}
CLIENTS = ("requests.", "urllib3.", "urllib.error.", "httpx.", "httpcore.", "aiohttp.", "botocore.", "http.client.")
"""Modules whose exceptions are about a connection."""
HUB_OFFLINE = ("OfflineModeIsEnabled", "LocalEntryNotFoundError", "OfflineModeIsEnabledError")
SAYS_OFFLINE = re.compile(r"offline mode|_OFFLINE\b", re.IGNORECASE)
"""Scripts and libraries look at the variables that `offline` has set, and give up without trying."""
URL = re.compile(r"(?:https?|ftp|git|ssh)://(?:[^/@\s]+@)?([\w.-]+)")
HUB = "huggingface.co"
HUB_PACKAGES = ("huggingface_hub", "transformers", "datasets", "diffusers", "timm", "evaluate")
REPOSITORY_VARIABLES = ("repo_id", "path_or_repo_id", "pretrained_model_name_or_path", "hf_hub_id", "model_id", "path")


class Network:
    """The last host that was asked for, and those that could not be reached."""

    def __init__(self) -> None:
        self._host: str | None = None
        self._failures: dict[str, str] = {}
        """The last error of each host."""

    def install(self, capture: Capture) -> None:
        capture.imports.when_imported("socket", lambda socket: self._watch(capture, socket))

    def _watch(self, capture: Capture, socket: Any) -> None:
        def looking_up(original: Any) -> Any:
            @wraps(original)
            def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
                self._note(host)
                with self._noting_failures(host):
                    return original(host, *args, **kwargs)

            return getaddrinfo

        def connecting(original: Any) -> Any:
            @wraps(original)
            def connect(self_: Any, address: Any) -> Any:
                host = address[0] if isinstance(address, tuple) else None
                if self._host is None:
                    self._note(host)
                with self._noting_failures(host):
                    return original(self_, address)

            return connect

        capture.patches.wrap(socket, "getaddrinfo", looking_up)
        capture.patches.wrap(socket.socket, "connect", connecting)

    def _note(self, host: Any) -> None:
        self._host = _remote(host) or self._host

    @contextmanager
    def _noting_failures(self, host: Any) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            name = _remote(host)
            if name is not None and _is_about_a_connection(error):
                self._failures[name] = str(error)
            raise

    def wanted_by(self, error: BaseException) -> str | None:
        """What the error would not have been raised with; None if it is about something else."""
        for each in _chain(error):
            # datasets raises another error in the place of this one, with its name in the text.
            if type(each).__name__ in HUB_OFFLINE or any(name in str(each) for name in HUB_OFFLINE):
                repository = next(filter(None, map(_repository, _chain(error))), None)
                return f"{repository} from {HUB}" if repository else HUB
        if self._host is not None and any(map(_is_about_a_connection, _chain(error))):
            return self._host
        quoted = next(filter(None, map(self._quoted, _chain(error))), None)
        if quoted is None:
            quoted = next(filter(None, map(_downloaded, _chain(error))), None)
        if quoted is None and any(SAYS_OFFLINE.search(str(each)) for each in _chain(error)):
            return "a download"
        return quoted

    def unreached(self) -> str | None:
        """The last host that could not be reached. Libraries look for a file on the network, then raise an error that
        says only that it is missing (evaluate, nltk)."""
        return next(reversed(self._failures), None)

    def _quoted(self, error: BaseException) -> str | None:
        """The host that could not be reached, if the text of the error names it or quotes the failure: torchvision
        tries all mirrors of a data set and then raises an error that is not chained to theirs."""
        text = str(error)
        return next((host for host, failure in self._failures.items() if host in text or failure in text), None)


def _remote(host: Any) -> str | None:
    name = host.decode(errors="replace") if isinstance(host, bytes) else str(host or "")
    is_local = name == "localhost" or name.startswith(("127.", "::1", "0.0.0.0"))
    return None if is_local or not name else name


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        reason = getattr(error, "reason", None)  # of urllib's and urllib3's
        inner = reason if isinstance(reason, BaseException) else None
        error = inner or error.__cause__ or error.__context__
    return found


def _downloaded(error: BaseException) -> str | None:
    """The host in the command that failed: `wget https://...`."""
    command = getattr(error, "cmd", None)  # of subprocess's
    found = URL.search(command if isinstance(command, str) else " ".join(map(str, command or ())))
    return _remote(found[1]) if found else None


def _is_about_a_connection(error: BaseException) -> bool:
    if type(error).__name__ == "gaierror" or getattr(error, "errno", None) in NETWORK_ERRORS:
        return True
    return f"{type(error).__module__}.".startswith(CLIENTS)


def _repository(error: BaseException) -> str | None:
    """From the arguments of the hub's functions that the error has passed through."""
    traceback: TracebackType | None = error.__traceback__
    found = None
    while traceback is not None:
        frame = traceback.tb_frame
        if str(frame.f_globals.get("__name__", "")).split(".")[0] in HUB_PACKAGES:
            values = (frame.f_locals.get(name) for name in REPOSITORY_VARIABLES)
            found = next((value for value in values if isinstance(value, str) and value), found)
        traceback = traceback.tb_next
    return found
