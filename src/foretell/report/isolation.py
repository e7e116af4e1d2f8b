"""What was done about the files and the network of a script, in words that promise no more than was held."""

from __future__ import annotations

from collections.abc import Iterator

from foretell.records import Estimate, Isolation


def isolation_rows(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Rows of a table: a title and a sentence."""
    count = len(estimate.redirected_writes)
    files = "1 file" if count == 1 else f"{count} files"
    isolation = estimate.isolation
    if isolation is None:  # an older trace does not say how
        if count:
            yield "writes", f"{files} redirected to a scratch folder"
    elif isolation.mode == "kernel":
        yield "isolation", f"by the kernel: {_kept(count, files)}; {_network(isolation)}"
        if isolation.read_only:
            yield "read-only", f"for the script, because no layer could cover them: {', '.join(isolation.read_only)}"
    elif isolation.mode == "python":
        redirected = f"{files} redirected to a scratch folder" if count else "no file had to be redirected"
        yield "isolation", f"by replaced Python functions{_reason(isolation)}: {redirected}"
        yield "not held", f"files written by native code and by other programs; {_not_held_of_network(isolation)}"
    else:
        yield "isolation", "none: the script could change your files and use the network; known trackers were silenced"
    if estimate.not_sent:
        yield "not sent", ", ".join(estimate.not_sent)


def _kept(count: int, files: str) -> str:
    return f"{files} changed in a scratch layer, none of yours" if count else "none of your files changed"


def _network(isolation: Isolation) -> str:
    return "downloads allowed (--online)" if isolation.is_online else "no network"


def _not_held_of_network(isolation: Isolation) -> str:
    return "the network" if isolation.is_online else "the network, but for known trackers and hubs"


def _reason(isolation: Isolation) -> str:
    return f" ({isolation.reason}; see `foretell doctor`)" if isolation.reason else ""
