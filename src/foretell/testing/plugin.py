"""What pytest loads: the marker `gpu_memory` and the fixture `gpu_estimate`.

It is loaded in every run of pytest where foretell is installed, so it imports the rest of foretell only for a test that
uses one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from foretell.records import Estimate

_MARKER = (
    'gpu_memory(limit=None, *, gpu=None, of="device", steps="all", engine="auto", timeout=None): run the test on a '
    "virtual GPU, and fail if it does not fit or needs more than the limit (foretell)"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test with the marker in a process of its own: fixtures and body see the virtual GPU there."""
    marker = item.get_closest_marker("gpu_memory")
    if marker is None or "FORETELL_CAPTURE" in os.environ:  # already on a virtual GPU
        return None
    from foretell.testing.checked import reports_of

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports_of(item, nextitem, marker):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def gpu_estimate() -> Callable[..., Estimate]:
    """`gpu_estimate(function_or_command, gpu="a10g", ...)`: the estimate of `foretell.estimate`, with its parameters.
    Skips the test where foretell cannot run."""
    from foretell.testing.checked import estimate_or_skip

    return estimate_or_skip
