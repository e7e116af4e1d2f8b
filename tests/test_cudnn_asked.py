"""The CPU engine asks an installed cuDNN for its workspaces: the virtual GPU, which asks it too, is the oracle."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import HAS_CUDA
from foretell.cli import main
from foretell.engines.python_cuda.cudnn import library_of
from foretell.trace import ACTIONS, Convolutions, Trace, load
from warm_runs import WarmRuns

ALLOC = ACTIONS.index("alloc")
EVERY_LAYER = """
    import torch
    from torch import nn

    def train(layer, shape, dtype=torch.float32, memory_format=torch.contiguous_format):
        layer = layer.to("cuda", dtype, memory_format=memory_format)
        x = torch.zeros(shape, device="cuda", dtype=dtype).to(memory_format=memory_format).requires_grad_()
        for _ in range(2):
            layer(x).sum().backward()

    for dtype in (torch.float32, torch.float16):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            how = dtype, memory_format
            train(nn.Conv2d(3, 64, 7, stride=2, padding=3), (8, 3, 64, 64), *how)
            train(nn.Conv2d(64, 128, 3, padding=1), (8, 64, 28, 28), *how)
            train(nn.Conv2d(64, 128, 1, bias=False), (8, 64, 28, 28), *how)
            train(nn.Conv2d(64, 64, 3, padding=1, groups=64), (8, 64, 28, 28), *how)
            train(nn.Conv2d(64, 64, 3, dilation=2, groups=4), (8, 64, 28, 28), *how)
            train(nn.ConvTranspose2d(64, 32, 2, stride=2), (8, 64, 14, 14), *how)
    for dtype in (torch.float32, torch.float64):
        train(nn.Conv1d(32, 64, 5, padding=2), (8, 32, 500), dtype)
        train(nn.Conv3d(8, 16, 3), (4, 8, 16, 16, 16), dtype, torch.channels_last_3d)
        train(nn.Conv3d(16, 16, 3, groups=16), (4, 16, 16, 16, 16), dtype)
        train(nn.ConvTranspose3d(8, 16, 3), (4, 8, 16, 16, 16), dtype)
    with torch.autocast("cuda", torch.bfloat16):
        train(nn.Conv2d(32, 64, 3), (8, 32, 28, 28))
    print("DONE")
"""
FLAGS = """
    import torch

    layer, x = torch.nn.Conv2d(64, 64, 3, padding=1).cuda(), torch.zeros(16, 64, 28, 28, device="cuda")
    {line}
    layer(x).sum().backward()
    print("DONE")
"""
PUBLISHED = """
    import torch

    def drawn(*shape):
        return torch.randn(shape, device="cuda").type(torch.bfloat16)

    x, w, b = drawn(1, 96, 6, 626, 626), drawn(96, 96, 3, 3, 3), drawn(96)
    before = torch.cuda.max_memory_allocated()
    for _ in range(3):
        y = torch.nn.functional.conv3d(x, w, b)
    print("PEAKS", before, torch.cuda.max_memory_allocated())
"""
TOLD_AND_BUILT = """
    import json, os
    import torch
    from foretell.engines.python_cuda import cudnn
    from foretell.rules.convolution import Convolution

    card = dict(item.split("=", 1) for item in os.environ["FORETELL_DEVICE"].split(";"))
    asked = cudnn.Cudnn(cudnn.library_of(torch), card)
    image, filters = cudnn.Placement((50176, 784, 28, 1), 16), cudnn.Placement((576, 9, 3, 1), 16)
    sizes = []
    for direction in ("forward", "data", "weights"):
        convolution = Convolution(
            direction=direction, x=(16, 64, 28, 28), y=(16, 64, 28, 28), w=(64, 64, 3, 3), stride=(1, 1),
            padding=(1, 1), dilation=(1, 1), groups=1, element_bytes=4, is_channels_last=False,
        )
        graph = asked._graph(cudnn.Layer(convolution, "float32", image, image, filters, False, True))
        for mode in (cudnn._INSTANT, cudnn._FALLBACK):
            for config in asked._configs(graph, mode):
                behavior = asked._engine(config).notes(cudnn._ENGINE_BEHAVIOR, cudnn._BEHAVIOR_NOTE)
                if cudnn._RUNTIME_COMPILATION in behavior:
                    plan = asked._plan(config)
                    told = plan.number(cudnn._PLAN_WORKSPACE)
                    json_representation = 405
                    assert plan.get(json_representation, cudnn._CHAR, None) > 1000  # this builds it
                    sizes.append((told, plan.number(cudnn._PLAN_WORKSPACE)))
    print("SIZES", json.dumps(sizes))
"""


def run_both(text: str, gpu: str, warm_runs: WarmRuns, folder: Path, **options: str) -> tuple[Trace, Trace]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    traces = []
    for engine in ("virtual", "cpu"):
        run = warm_runs.run(script, gpu=gpu, engine=engine, trace=folder / engine, **options)
        assert "DONE" in run.stdout, run.tail()
        traces.append(load(folder / engine))
    if traces[0].has_ruled_workspaces:
        pytest.skip("this cuDNN plans for real cards only")
    return traces[0], traces[1]


def distinct(trace: Trace) -> set[tuple[int, ...]]:
    """The CPU engine keeps one of calls that are the same."""
    return set(zip(*(getattr(trace.convolutions, f.name) for f in fields(Convolutions)[2:]), strict=True))


def sizes(trace: Trace) -> list[int]:
    return [size for action, size in zip(trace.memory.action, trace.memory.size, strict=True) if action == ALLOC]


@pytest.mark.skipif(not HAS_CUDA, reason="there is no virtual GPU without the CUDA build of torch")
@pytest.mark.parametrize("gpu", ["rtx-3060", "a100-40gb"])
def test_every_allocation_of_a_convolution_is_that_of_the_virtual_gpu(
    gpu: str, warm_runs: WarmRuns, tmp_path: Path
) -> None:
    virtual, cpu = run_both(EVERY_LAYER, gpu, warm_runs, tmp_path)
    assert sizes(cpu) == sizes(virtual)
    assert "cudnnBackendExecute" in cpu.library_functions()
    assert not cpu.has_ruled_workspaces
    assert distinct(cpu) == distinct(virtual)
    assert len(set(cpu.convolutions.workspace_bytes)) > 20, "these layers would not tell right from wrong"


@pytest.mark.skipif(not HAS_CUDA, reason="there is no virtual GPU without the CUDA build of torch")
@pytest.mark.parametrize(
    "line",
    [
        "torch.backends.cudnn.benchmark = True",
        "torch.backends.cudnn.allow_tf32 = False",
        "torch.backends.cudnn.deterministic = True",
        "import os; os.environ['TORCH_CUDNN_USE_HEURISTIC_MODE_B'] = '1'",
        "torch.use_deterministic_algorithms(True)",
        "x = torch.zeros(1 + 16 * 64 * 28 * 28, device='cuda')[1:].view(16, 64, 28, 28)  # not aligned",
        "left = torch.empty(torch.cuda.mem_get_info()[0] - (32 << 20), dtype=torch.uint8, device='cuda')",
    ],
)
def test_the_plan_is_the_one_torch_would_take(line: str, warm_runs: WarmRuns, tmp_path: Path) -> None:
    virtual, cpu = run_both(FLAGS.format(line=line), "rtx-3060", warm_runs, tmp_path)
    assert sizes(cpu) == sizes(virtual)


@pytest.mark.skipif(not HAS_CUDA, reason="there is no virtual GPU without the CUDA build of torch")
@pytest.mark.parametrize("workspaces", ["none", "next"])
def test_another_engine_is_another_for_both(workspaces: str, warm_runs: WarmRuns, tmp_path: Path) -> None:
    virtual, cpu = run_both(FLAGS.format(line=""), "a100-40gb", warm_runs, tmp_path, workspaces=workspaces)
    assert distinct(cpu) == distinct(virtual)
    usual, _ = run_both(FLAGS.format(line=""), "a100-40gb", warm_runs, tmp_path)
    assert sum(usual.convolutions.workspace_bytes) > 0
    if workspaces == "none":
        assert not any(virtual.convolutions.workspace_bytes)
    else:
        assert all(
            abs(now - then) > max(512, then // 20)
            for now, then in zip(virtual.convolutions.workspace_bytes, usual.convolutions.workspace_bytes, strict=True)
        )


@pytest.mark.skipif(not HAS_CUDA, reason="there is no virtual GPU without the CUDA build of torch")
def test_a_plan_that_compiles_its_kernel_needs_what_its_configuration_tells(
    warm_runs: WarmRuns, tmp_path: Path
) -> None:
    """native/libraries/cudnn.c relies on it; tests/native checks that it does not build such a plan."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(TOLD_AND_BUILT))
    run = warm_runs.run(script, gpu="h100-sxm")
    if "CudnnError" in run.stderr:
        pytest.skip("this cuDNN plans for real cards only")
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("SIZES ")]
    sizes = json.loads(line.removeprefix("SIZES "))
    assert all(told == built for told, built in sizes)
    assert any(told > 0 for told, _ in sizes), "no such plan among these: the test would not tell right from wrong"


@pytest.mark.skipif(not HAS_CUDA, reason="there is no virtual GPU without the CUDA build of torch")
def test_the_workspace_is_that_of_a_real_card(warm_runs: WarmRuns, tmp_path: Path) -> None:
    """github.com/pytorch/pytorch/issues/166643, as run on an A100 with cuDNN 9.15: 1.2622 and 1.6773 GiB."""
    (tmp_path / "script.py").write_text(textwrap.dedent(PUBLISHED))
    run = warm_runs.run(tmp_path / "script.py", gpu="a100-80gb", trace=tmp_path / "trace")
    if load(tmp_path / "trace").has_ruled_workspaces:
        pytest.skip("this cuDNN plans for real cards only")
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("PEAKS ")]
    before, after = (int(word) / 2**30 for word in line.split()[1:])
    assert f"{before:.4f} {after:.4f}" == "1.2622 1.6773"


def test_without_cudnn_a_rule_stands_in_and_says_what_to_install(warm_runs: WarmRuns, tmp_path: Path) -> None:
    if HAS_CUDA or library_of(SimpleNamespace(version=SimpleNamespace(cuda=None))) is not None:
        pytest.skip("a cuDNN is installed")
    (tmp_path / "script.py").write_text(textwrap.dedent(FLAGS.format(line="")))
    run = warm_runs.run(tmp_path / "script.py", engine="cpu")
    assert run.code == 0, run.tail()
    (caveat,) = [caveat for caveat in run.result["caveats"] if "workspaces are estimated" in caveat]
    assert "pip install nvidia-cudnn-cu13" in caveat


def test_a_package_counts_where_cublas_is_beside_it(tmp_path: Path, monkeypatch: Any) -> None:
    torch = SimpleNamespace(version=SimpleNamespace(cuda=None))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert library_of(torch) is None
    library = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.touch()
    assert library_of(torch) is None, "without cuBLAS it would end the process"
    (tmp_path / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    (tmp_path / "nvidia" / "cu13" / "lib" / "libcublasLt.so.13").touch()
    assert library_of(torch) == str(library)


def test_the_doctor_says_whether_there_is_a_cudnn_to_ask(capsys: Any) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    if findings["cuDNN"]["state"] == "ok":
        assert "queried for convolution workspaces" in findings["cuDNN"]["detail"]
    else:
        assert "workspaces are estimated" in findings["cuDNN"]["detail"]
        assert ("pip install nvidia-cudnn-cu13" in findings["cuDNN"]["detail"]) is not HAS_CUDA
