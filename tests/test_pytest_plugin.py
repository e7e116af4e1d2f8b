"""The pytest plugin: tests with the marker `gpu_memory` run on a virtual GPU, and everybody else's as if it were not
there."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from conftest import PYTEST_IN_FORKS

pytest_plugins = ["pytester"]

TRAINING = """
import pytest, torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

@pytest.fixture(params=[1, 2])
def layers(request):
    assert torch.cuda.is_available(), "fixtures run on the virtual GPU"
    return [torch.nn.Linear(4096, 4096, device=DEVICE) for _ in range(request.param)]

def train(layers, steps=6):
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters())
    for number in range(steps):
        model(torch.randn(8, 4096, device=DEVICE)).sum().backward()
        optimizer.step()
    return number
"""


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_ADDOPTS", "FORCE_COLOR", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)


def outcomes(result: pytest.RunResult) -> dict[str, int]:
    return {name: count for name, count in result.parseoutcomes().items() if name not in ("warnings", "seconds")}


def test_others_are_not_slowed_down_and_the_marker_is_registered(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys
        import pytest

        def test_plain(request):
            assert request.config.pluginmanager.hasplugin("foretell")
            heavy = ("foretell.", "torch", "rich", "cloudpickle")
            assert [m for m in sys.modules if m.startswith(heavy) and not m.startswith("foretell.testing")] == []
            assert "foretell.testing.checked" not in sys.modules

        @pytest.mark.skip
        @pytest.mark.gpu_memory(limit="1GiB")
        def test_marked():
            pass
    """)
    result = pytester.runpytest_subprocess("--strict-markers", "-k", "plain")
    assert outcomes(result) == {"passed": 1, "deselected": 1}
    assert "@pytest.mark.gpu_memory(limit=None, *, gpu=None" in str(pytester.runpytest_subprocess("--markers").stdout)


def test_a_test_needs_its_memory_on_the_virtual_gpu(pytester: pytest.Pytester) -> None:
    """Within, over, out of memory, skipped and failed by itself; fixtures, parameters, classes, options; xdist."""
    pytester.makeconftest(PYTEST_IN_FORKS + """
import pytest

def pytest_addoption(parser):
    parser.addoption("--given")

@pytest.fixture(scope="module")
def shared():
    yield 1
""")
    pytester.makepyfile(test_gpu=TRAINING + """
def test_before(shared): pass

@pytest.mark.gpu_memory("500MiB", gpu="rtx-3060")
def test_two_sizes(layers, request):
    assert train(layers) == 5, "all steps are run"
    assert request.config.getoption("--given") == "x"

@pytest.mark.gpu_memory(gpu="256MiB,sm86")
class TestClass:
    def test_out_of_memory(self):
        train([torch.nn.Linear(4096, 4096, device="cuda") for _ in range(8)])

@pytest.mark.gpu_memory(limit="1GiB")
def test_wrong():
    torch.ones(4, device="cuda")
    values = [1, 2]
    assert values == [1, 3]

@pytest.mark.gpu_memory(limit="1GiB")
def test_nothing():
    pass

@pytest.mark.gpu_memory(limit="1GiB")
@pytest.mark.skipif(torch.cuda.is_available(), reason="only without GPU")
def test_skipped(): pass

@pytest.mark.gpu_memory(limit="1GiB")
@pytest.mark.xfail(strict=True)
def test_expected():
    torch.ones(4, device="cuda")
    raise ValueError

@pytest.mark.gpu_memory(limit="lots")
def test_misspelt(): pass

@pytest.mark.gpu_memory(memory="1GiB")
def test_unknown(): pass

def test_after(shared): pass
""")
    result = pytester.runpytest_subprocess(
        "--given", "x", "--junitxml", "junit.xml", "-n", "2", "--dist", "loadgroup", "-rA", "test_gpu.py"
    )
    shown = str(result.stdout)
    assert outcomes(result) == {"passed": 3, "failed": 6, "skipped": 1, "xfailed": 1}, shown
    assert re.search(r"SKIPPED \[1\] test_gpu.py.*only without GPU", shown)
    over, oom = (shown[shown.index(f"_ {name} _") :] for name in ("test_two_sizes[2]", "TestClass.test_out_of_memory"))
    assert re.match(r"_ \S+ _+\n(\[gw\d\].*\n)?over the limit: device \d+ MiB, 500 MiB allowed\n", over), over[:500]
    assert "held at the peak:" in over[:1500]
    assert "out of memory on 256MiB,sm86, needs" in oom[:500]
    assert re.search(r"ran out in step 0, other at test_gpu.py:\d+: CUDA out of memory", oom[:1500])
    assert "assert [1, 2] == [1, 3]" in shown
    assert "no estimate: nothing was put on the GPU" in shown
    assert "@pytest.mark.gpu_memory: --limit: not a size: 'lots'" in shown
    assert "it has no parameter memory; its parameters are limit, gpu" in shown
    cases = ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    properties = {case.get("name"): [each.get("name") for each in case.iter("property")] for case in cases}
    assert properties["test_two_sizes[1]"] == ["gpu_memory_device_bytes"]
    assert not list(pytester.path.glob("**/reports.jsonl"))


def test_enough_steps_are_a_passed_test(pytester: pytest.Pytester) -> None:
    """Also with modules that cannot be imported by their name."""
    pytester.makeconftest(PYTEST_IN_FORKS)
    folder = pytester.mkdir("tests")
    (folder / "test_long.py").write_text(TRAINING + """
@pytest.mark.gpu_memory(gpu="rtx-3060", steps="auto")
def test_long():
    train([torch.nn.Linear(4096, 4096, device="cuda")], steps=10**9)

class Config:
    size = 64

def a_step(config):
    torch.nn.Linear(config.size, 4, device="cuda")(torch.ones(4, config.size, device="cuda")).sum().backward()

def test_estimate(gpu_estimate):
    found = gpu_estimate(a_step, gpu="rtx-3060", args=[Config()])
    assert found.gpu.name == "rtx-3060" and found.peak.allocated_bytes > 0
""")
    result = pytester.runpytest_subprocess("--import-mode=importlib", "tests")
    assert outcomes(result) == {"passed": 2}, str(result.stdout)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("", "nothing to check. Give --gpu NAME, --limit SIZE"),
        ("'1GiB', '2GiB'", "it has only one limit"),
        ("'1GiB', limit='2GiB'", "it has only one limit"),
        ("gpu='voodoo'", "unknown GPU: 'voodoo'"),
        ("gpu=4", "gpu=4: must be the name of a GPU"),
        ("'1GiB', steps='some'", "steps='some': must be a number, 'auto' or 'all'"),
        ("'1GiB', of='vram'", "--of vram: must be one of device, request"),
        ("'1GiB', engine='tpu'", "engine='tpu': must be 'auto', 'virtual' or 'cpu'"),
        ("'1GiB', timeout='9'", "timeout='9': must be a number of seconds"),
    ],
)
def test_wrong_parameters_are_a_failure_in_one_line(parameters: str, message: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.gpu_memory({parameters})\ndef test_x(): pass")
    result = pytester.runpytest_inprocess()
    assert outcomes(result) == {"failed": 1}
    assert f"@pytest.mark.gpu_memory: {message}" in str(result.stdout)
    assert "Traceback" not in str(result.stdout)


def test_what_does_not_collect_in_the_child_is_said(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import os, pytest
        if "FORETELL_CAPTURE" in os.environ:
            raise ImportError("not twice")

        @pytest.mark.gpu_memory(limit="1GiB")
        def test_x(): pass
    """)
    result = pytester.runpytest_subprocess()
    assert outcomes(result) == {"failed": 1}
    assert "the test could not be run on the virtual GPU" in str(result.stdout)
    assert "ImportError: not twice" in str(result.stdout)


def test_where_foretell_cannot_run_tests_are_skipped(pytester: pytest.Pytester) -> None:
    """As with a torch that foretell does not support."""
    pytester.makeconftest("""
        import foretell.runs.command as command
        from foretell.errors import UnsupportedError

        def refuse(*args, **kwargs):
            raise UnsupportedError("torch 1.0 is too old")

        command.refuse_torch = refuse
    """)
    pytester.makepyfile(test_old="""
        import pytest

        @pytest.mark.gpu_memory(limit="1GiB")
        def test_marked():
            raise AssertionError

        def test_fixture(gpu_estimate):
            gpu_estimate(["train.py"])
            raise AssertionError
    """)
    result = pytester.runpytest_subprocess("-rs")
    assert outcomes(result) == {"skipped": 2}
    assert "test_old.py:3: torch 1.0 is too old" in str(result.stdout)


def test_under_foretell_a_marked_test_is_a_test_like_any_other(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORETELL_CAPTURE", "{}")
    monkeypatch.setenv("PYTHONPATH", "")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.gpu_memory(limit="1GiB")
        def test_marked(pytestconfig):
            assert pytestconfig is not None
    """)
    assert outcomes(pytester.runpytest_subprocess()) == {"passed": 1}
