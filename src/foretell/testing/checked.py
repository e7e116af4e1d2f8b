"""Runs a test on the virtual GPU and checks the memory it needs: reports of pytest are the result."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from foretell import api
from foretell.api import DEFAULT_GPU
from foretell.errors import ForetellError, UnsupportedError, UsageError
from foretell.jobs import CaptureOptions, Job, changes
from foretell.plan.check import Check, Gate, gpu_for, judge, require_a_rule
from foretell.records import Engine, Estimate, Gpu
from foretell.report.holders import blocks_at_peak, holders, words_of
from foretell.report.places import short_place
from foretell.runs import OUTPUT, resolve
from foretell.testing import child
from foretell.units import format_bytes

_CHILD = Path(child.__file__)
_PARAMETERS = ("limit", "gpu", "of", "steps", "engine", "timeout")
_NOT_INHERITED = ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST")
_OFF = {"xdist": ["-n", "0"], "pytest_cov": ["--no-cov"]}
"""Options that keep plugins from what they must do only once."""
_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "limit": (lambda value: isinstance(value, (str, int)), "a size, for example '22GiB'"),
    "gpu": (lambda value: isinstance(value, (str, Gpu)), "the name of a GPU"),
    "steps": (lambda value: value in ("auto", "all") or type(value) is int, "a number, 'auto' or 'all'"),
    "engine": (lambda value: value in ("auto", "virtual", "cpu"), "'auto', 'virtual' or 'cpu'"),
    "timeout": (lambda value: type(value) in (int, float), "a number of seconds"),
}
_NUM_HOLDERS = 5
_NUM_LINES = 30
_When = Literal["setup", "call", "teardown"]


def reports_of(item: pytest.Item, nextitem: pytest.Item | None, marker: pytest.Mark) -> Iterator[pytest.TestReport]:
    """Of setup, call and teardown, as pytest makes them."""
    found: dict[str, pytest.TestReport] = {}
    checked = _report(item, "call", lambda: _check(item, marker, found))
    setup = found.get("setup")
    yield setup or _report(item, "setup", lambda: None)
    if setup is None or setup.passed:
        yield checked if _is_ours(checked, found) else found["call"]
    # The test before this one has left to its successor what both share: nothing of it was set up for this one.
    own = _report(item, "teardown", lambda: item.session._setupstate.teardown_exact(nextitem))
    theirs = found.get("teardown", own)
    yield own if theirs.passed else theirs


def _is_ours(checked: pytest.TestReport, found: Mapping[str, pytest.TestReport]) -> bool:
    """Whether the result of the check counts, and not what became of the test itself."""
    return not checked.passed or "call" not in found or found["call"].passed


def _report(item: pytest.Item, when: _When, function: Callable[[], Any]) -> pytest.TestReport:
    passed_on = (pytest.exit.Exception, KeyboardInterrupt)
    call: pytest.CallInfo[Any] = pytest.CallInfo.from_call(function, when=when, reraise=passed_on)
    report = pytest.TestReport.from_item_and_call(item, call)
    if report.skipped and isinstance(report.longrepr, tuple):  # where the test is, not where foretell skips it
        report.longrepr = (str(item.path), (item.location[1] or 0) + 1, report.longrepr[2])
    return report


def _check(item: pytest.Item, marker: pytest.Mark, found: dict[str, pytest.TestReport]) -> None:
    """Raises what pytest takes for a failed or skipped test. Fills `found` with the reports of the child; if the test
    itself was skipped or failed there, they are all there is."""
    try:
        gate, job = _job(item, marker)
    except UnsupportedError as error:
        raise pytest.skip.Exception(str(error)) from None
    except UsageError as error:
        raise _failure(f"@pytest.mark.gpu_memory: {error}") from None
    with api.scratch() as folder:
        try:
            run = api.run(job, directory=folder)
            problem = _read_reports(item, folder, found)
            is_oom = bool(run.trace.ooms) and run.estimate_so_far.oom is not None
            if is_oom:
                found.clear()  # tracebacks of what the message says
            elif not all(report.passed for report in found.values()):
                return
            elif run.trace.is_timed_out:
                raise _failure(f"the test was stopped at its time limit (timeout={job.options.timeout_seconds:g})")
            elif problem is not None:
                raise _failure(f"the test could not be run on the virtual GPU:\n{problem}")
            check = judge(api.find_need(run).estimate, gate)
        except ForetellError as error:
            raise _failure(f"no estimate: {error}") from None
    item.user_properties.append(("gpu_memory_device_bytes", check.estimate.device_bytes))
    if check.verdict != "within":
        raise _failure(_message(check))


def _failure(message: str) -> BaseException:
    """The message alone, without a traceback through foretell."""
    return pytest.fail.Exception(message, pytrace=False)


def _job(item: pytest.Item, marker: pytest.Mark) -> tuple[Gate, Job]:
    given = _parameters(marker)
    limit, gpu = given.get("limit"), given.get("gpu")
    gate = Gate(of=given.get("of", "device"), limit=None if limit is None else str(limit))
    require_a_rule(gate, is_gpu_given=gpu is not None, writes=False)
    engine: Engine | Literal["auto"] = given.get("engine", "auto")
    options = CaptureOptions(
        steps=given.get("steps", "all"), engine=engine, timeout_seconds=given.get("timeout"), stdout="file"
    )
    command = (sys.executable, str(_CHILD))
    card = gpu_for(gate, gpu)
    resolve(command, engine=engine)
    told = json.dumps({"path": sys.path, "args": _arguments(item.config), "test": _address(item)})
    environment = changes({**dict.fromkeys(_NOT_INHERITED), child.TOLD: told})
    return gate, Job(
        command=command, gpu=card, cwd=item.config.invocation_params.dir, environment=environment, options=options
    )


def _parameters(marker: pytest.Mark) -> dict[str, Any]:
    unknown = [name for name in marker.kwargs if name not in _PARAMETERS]
    if unknown or len(marker.args) > 1 or (marker.args and "limit" in marker.kwargs):
        what = f"no parameter {unknown[0]}" if unknown else "only one limit"
        raise UsageError(f"it has {what}; its parameters are {', '.join(_PARAMETERS)}.")
    given = {**marker.kwargs, **({"limit": marker.args[0]} if marker.args else {})}
    for name, (is_valid, allowed) in _VALID.items():
        if name in given and not is_valid(given[name]):
            raise UsageError(f"{name}={given[name]!r}: must be {allowed}.")
    return given


def _arguments(config: pytest.Config) -> list[str]:
    off = [word for plugin, words in _OFF.items() if config.pluginmanager.hasplugin(plugin) for word in words]
    return [*map(str, config.invocation_params.args), *off]


def _address(item: pytest.Item) -> str:
    """As for the command line of pytest. The name of the node may have more: xdist adds its groups to it."""
    names = [node.name for node in item.listchain() if isinstance(node, (pytest.Class, pytest.Item))]
    return "::".join([str(item.path), *names])


def _read_reports(item: pytest.Item, folder: Path, found: dict[str, pytest.TestReport]) -> str | None:
    """Fill `found` by setup, call and teardown; returns why a report of the call is missing."""
    path = folder / child.REPORTS
    errors = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        data = json.loads(line)
        if "error" in data:
            errors.append(data["error"])
            continue
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        report.nodeid = item.nodeid
        if isinstance(report.longrepr, list):  # JSON has no tuples: file, line and reason of a skip
            report.longrepr = tuple(report.longrepr)
        found[report.when] = report
    return None if "call" in found or "setup" in found else "\n".join(errors) or _tail(folder)


def _tail(folder: Path) -> str:
    output = folder / OUTPUT
    return "\n".join(output.read_text(errors="replace").splitlines()[-_NUM_LINES:]) if output.exists() else ""


def _message(check: Check) -> str:
    """The check, where memory ran out, and what holds the most."""
    estimate = check.estimate
    lines = [str(check)]
    if estimate.oom is not None:
        where = f" at {short_place(estimate.oom.where)}" if estimate.oom.where else ""
        lines.append(f"ran out in step {estimate.oom.step}, {estimate.oom.phase}{where}: {estimate.oom.message}")
    if estimate.attribution is not None:
        lines.append("held when it ran out:" if estimate.oom else "held at the peak:")
        for each in holders(blocks_at_peak(estimate.attribution))[:_NUM_HOLDERS]:
            place = f"  {short_place(each.where)}" if each.where else ""
            count = f" x{each.num_blocks}" if each.num_blocks > 1 else ""
            what = f"{words_of(each.category)}{count}  {each.module or '-'}"
            lines.append(f"  {format_bytes(each.bytes):>10}  {what}{place}")
    return "\n".join(lines)


# --- the fixture ------------------------------------------------------------------------------------------------------


def estimate_or_skip(
    job: Sequence[str] | Callable[..., object], *, gpu: str = DEFAULT_GPU, **options: Any
) -> Estimate:
    """`foretell.estimate`, with its parameters; the test is skipped where foretell cannot run."""
    __tracebackhide__ = True
    try:
        resolve((sys.executable,), engine=options.get("engine", "auto"))
    except UnsupportedError as error:
        pytest.skip(str(error))
    if not callable(job):
        return api.estimate(job, gpu=gpu, **options)
    with _by_value(sys.modules.get(getattr(job, "__module__", None) or "")):
        return api.estimate(job, gpu=gpu, **options)


@contextlib.contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    """Pickles the functions of a module that cannot be imported by its name (`--import-mode=importlib`) by value."""
    import cloudpickle

    if module is None or _origin(module.__name__) == getattr(module, "__file__", None):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _origin(name: str) -> str | None:
    """The file of a module as another process finds it: not among the modules of this one."""
    spec = None
    for part in name.split("."):
        path = None if spec is None else spec.submodule_search_locations
        spec = PathFinder.find_spec(part if spec is None else f"{spec.name}.{part}", path)
        if spec is None:
            return None
    return None if spec is None else spec.origin
