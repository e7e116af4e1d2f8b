"""`foretell run --engine cpu`: a script for CUDA on any torch, also one without CUDA (the stack torch-2.13-cpu).

How its numbers compare with the virtual GPU's is in tests/test_zoo.py; here is what it owes a user.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from conftest import HANG_SECONDS, HAS_CUDA, ROOT, ZOO, CpuReference, ForetellRun, RunForetell
from foretell.allocator import AllocatorSettings, CachingAllocator
from foretell.engines.imported.layers import layers_of
from foretell.trace import ACTIONS, load
from warm_runs import WarmRuns

TRAIN = """
import torch
from torch import nn
torch.manual_seed(0)
device = torch.device("{device}")
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                      nn.Linear(512, 32), nn.LayerNorm(32)).to(device)
attention, words, head = nn.MultiheadAttention(32, 4, batch_first=True), nn.Embedding(50, 32), nn.Linear(32, 10)
parts = nn.ModuleList([model, attention.to(device), words.to(device), head.to(device)])
optimizer = torch.optim.AdamW(parts.parameters(), lr=1e-2)
images, tokens, labels = torch.randn(16, 3, 16, 16), torch.randint(0, 50, (16, 5)), torch.randint(0, 10, (16,))
images, tokens, labels = images.to(device), tokens.to(device), labels.to(device)
for _ in range(4):
    states = torch.cat([model(images).unsqueeze(1), words(tokens)], 1)
    states = attention(states, states, states, need_weights=False)[0]
    loss = nn.functional.cross_entropy(head(states.mean(1)), labels)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
    optimizer.step()
    print(f"LOSS {{loss.item():.5f}}", flush=True)
"""


@pytest.fixture
def cpu_run(warm_runs: WarmRuns, tmp_path: Path) -> RunForetell:
    """A script, given as text, on the CPU engine."""

    def run(text: str, *arguments: str, **options: object) -> ForetellRun:
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
        return warm_runs.run(tmp_path / "script.py", *arguments, **{"engine": "cpu", **options})  # type: ignore[arg-type]

    return run


def printed(run: ForetellRun, start: str) -> list[str]:
    return [line.removeprefix(start).strip() for line in run.stdout.splitlines() if line.startswith(start)]


def test_auto_takes_what_the_torch_has(run_foretell: RunForetell) -> None:
    run = run_foretell(ZOO / "mlp_sgd.py", cwd=ZOO)
    assert run.code == 0, run.tail()
    assert run.result["engine"] == ("virtual" if HAS_CUDA else "cpu")


def test_nothing_of_the_engine_waits_for_the_garbage_collector(cpu_run: RunForetell) -> None:
    run = cpu_run("""
        import gc
        gc.disable()
        import torch
        def train():
            weights = torch.ones(1 << 20, device="cuda", requires_grad=True)
            optimizer = torch.optim.SGD([weights], lr=0.1)
            torch._foreach_mul([weights.detach()], 2.0)
            (weights * weights).sum().backward()
            weights.grad = None
            del optimizer
        train()
        print("LEFT", torch.cuda.memory_allocated())
    """)
    assert run.code == 0, run.tail()
    assert printed(run, "LEFT") == ["0"]


def test_a_torch_without_cuda_is_refused_by_the_virtual_gpu(run_foretell: RunForetell) -> None:
    if HAS_CUDA:
        pytest.skip("this torch has CUDA")
    run = run_foretell(ZOO / "mlp_sgd.py", options=["--engine", "virtual"])
    assert run.code == 2
    assert "--engine cpu" in run.stderr


def test_execute_computes_what_the_cpu_computes(
    cpu_run: RunForetell, cpu_reference: CpuReference, tmp_path: Path
) -> None:
    (tmp_path / "plain.py").write_text(TRAIN.format(device="cpu"))
    plain = cpu_reference.run(str(tmp_path / "plain.py"))
    expected = [line for line in plain.splitlines() if line.startswith("LOSS")]
    run = cpu_run(TRAIN.format(device="cuda"), execute=True, skip_init=False)
    assert run.code == 0, run.tail()
    assert [f"LOSS {loss}" for loss in printed(run, "LOSS")] == expected
    assert len(expected) == 4
    assert not [caveat for caveat in run.result["caveats"] if "unknown" in caveat or "not computed" in caveat]


def test_execute_allocates_what_the_run_without_values_allocates(cpu_run: RunForetell) -> None:
    executed = cpu_run(TRAIN.format(device="cuda"), execute=True)
    shown = cpu_run(TRAIN.format(device="cuda"))
    assert executed.code == shown.code == 0, executed.tail() + shown.tail()
    assert executed.peak["allocated_bytes"] == shown.peak["allocated_bytes"]
    assert executed.peak["reserved_bytes"] == shown.peak["reserved_bytes"]


def test_progress_of_a_run_that_computes(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        textwrap.dedent("""
        import select, sys, torch
        model = torch.nn.Linear(500, 500).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def compute():
            model(torch.randn(300, 500).cuda()).square().mean().backward()
        for step in range(4):
            compute()
            while step == 2 and not select.select([0], [], [], 0)[0]:
                compute()
            optimizer.step()
        """)
    )
    words = ["--gpu", "rtx-3060", "--engine", "cpu", "--execute", "--steps", "4", "--timeout", str(HANG_SECONDS)]
    said = []
    with subprocess.Popen(
        [sys.executable, "-m", "foretell", "run", *words, "slow.py"], cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if "operators computed" in line and "s left" in line:
                process.stdin.close()
    assert process.returncode == 0, "".join(said)
    assert process.stdin.closed, "".join(said)


def test_a_saved_checkpoint_is_no_value_the_script_looked_at(cpu_run: RunForetell) -> None:
    run = cpu_run("""
        import io, torch
        model = torch.nn.Linear(512, 512).cuda()
        output = model(torch.randn(8, 512, device="cuda"))
        torch.save(model.state_dict(), io.BytesIO())
        print("VALUE", output.sum().item())
        """)
    assert run.code == 0, run.tail()
    assert run.result["num_unknown_reads"] == 1


def test_values_that_choose_the_way_are_right(cpu_run: RunForetell) -> None:
    run = cpu_run("""
        import torch
        lengths = torch.tensor([3, 5, 2]).cuda()
        mask = torch.arange(6, device="cuda")[None] < lengths[:, None]
        x = torch.randn(3, 6, 8, device="cuda")
        print("SHAPE", tuple(x[mask].shape), tuple(mask.nonzero().shape), int(lengths.max()), lengths.tolist())
        labels = torch.full((3, 6), -100).cuda().masked_fill(mask, 1)
        print("COUNT", (labels != -100).sum().item(), bool(mask.all()), torch.unique(labels).tolist())
        order = torch.randperm(10, device="cuda")
        print("ORDER", order.sort().values.tolist() == list(range(10)))
    """)
    assert run.code == 0, run.tail()
    assert printed(run, "SHAPE") == ["(10, 8) (10, 2) 5 [3, 5, 2]"]
    assert printed(run, "COUNT") == ["10 False [-100, 1]"]
    assert printed(run, "ORDER") == ["True"]


@pytest.mark.parametrize("execute", [False, True])
def test_what_is_known_of_a_tensor_stays_known_when_it_is_resized(cpu_run: RunForetell, execute: bool) -> None:
    run = cpu_run(
        """
        import torch
        grown = torch.arange(3, device="cuda")
        grown.resize_(1000)
        grown[3:5] = 7
        print("GROWN", grown[:5].tolist(), int(grown.resize_(2).sum()))
        unknown = torch.nn.Linear(64, 16).cuda()(torch.rand(4, 64, device="cuda")).argmax(1)
        part = torch.cat([torch.arange(2, device="cuda"), unknown])
        print("PART", part.resize_(9)[:2].tolist())
        """,
        execute=execute,
    )
    assert run.code == 0, run.tail()
    assert printed(run, "GROWN") == ["[0, 1, 2, 7, 7] 1"]
    assert printed(run, "PART") == ["[0, 1]"]
    assert run.result["num_unknown_reads"] == 0


def test_a_value_nobody_knows_is_a_caveat_with_its_line(cpu_run: RunForetell) -> None:
    run = cpu_run("""
        import torch
        x = torch.randn(4096, 4096, device="cuda")
        if x.mean().item() > 100:
            raise ValueError
    """)
    assert run.code == 0, run.tail()
    assert any("script.py:4" in caveat for caveat in run.result["caveats"]), run.result["caveats"]


def test_hooks_and_classes_nobody_knows_need_no_caveat(cpu_run: RunForetell) -> None:
    run = cpu_run(
        """
        import torch
        model = torch.nn.Conv2d(3, 21, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            classes = model(torch.rand(2, 3, 64, 64, device="cuda"))
            classes.mean().backward()
            optimizer.step()
        found = classes.argmax(1).flatten()
        print(tuple(torch.bincount(21 * found + found, minlength=21 ** 2).reshape(21, 21).shape))
        """
    )
    assert run.stdout == "(21, 21)\n"
    assert len(run.result["steps"]) == 3
    assert not [caveat for caveat in run.result["caveats"] if "hook" in caveat or "unknown" in caveat]


def test_out_of_memory_is_a_verdict_where_it_happens(run_in_forks: RunForetell, tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("import torch\nkept = [torch.empty(1 << 30, device='cuda') for _ in range(4)]\n")
    run = run_in_forks(tmp_path / "large.py", gpu="10GiB,sm86", options=["--engine", "cpu", "--context", "300MiB"])
    assert run.code == 3, run.tail()
    assert run.result["verdict"] == "oom"
    assert run.result["oom"]["where"].endswith("large.py:2")
    assert "Tried to allocate 4.00 GiB" in run.result["oom"]["message"]
    assert run.peak["reserved_bytes"] == 8 << 30


def test_a_script_that_catches_out_of_memory_goes_on(cpu_run: RunForetell) -> None:
    run = cpu_run(
        """
        import torch
        try:
            torch.empty(1 << 40, device="cuda")
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        print("FREE", torch.cuda.mem_get_info()[0] > 1 << 30, torch.cuda.memory_reserved())
        torch.ones(3, device="cuda")  # without it the job would be out of memory
        """
    )
    assert run.code == 0, run.tail()
    assert printed(run, "FREE") == ["True 0"]


def test_tensors_of_two_devices_do_not_mix(cpu_run: RunForetell) -> None:
    run = cpu_run("import torch\ntorch.ones(3, device='cuda') + torch.ones(3)\n")
    assert run.code == 1
    assert "same device" in run.stderr


@pytest.mark.parametrize("line", ["torch.ones(3, device='cuda:1')", "torch.cuda.set_device(3)"])
def test_there_is_one_card_and_no_other(line: str, cpu_run: RunForetell) -> None:
    run = cpu_run(f"import torch\n{line}\n")
    assert run.code == 1
    assert "invalid device ordinal" in run.stderr


def test_an_operator_it_does_not_know_gives_no_number(cpu_run: RunForetell) -> None:
    run = cpu_run("""
        import torch
        try:
            torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.int64).cuda(), torch.ones(2).cuda(), (3,)).to_dense()
        except Exception:
            pass
    """)
    if HAS_CUDA:  # torch brings it along: indices, values and the dense tensor
        assert run.code == 0, run.tail()
        assert run.peak["allocated_bytes"] == 3 * 512
    else:
        assert run.code == 2
        assert "does not support the operator" in run.stderr
        assert "--engine virtual" in run.stderr


def test_explain_is_about_the_cpu_engine(run_in_forks: RunForetell) -> None:
    run = run_in_forks(ZOO / "mlp_adam.py", cwd=ZOO, options=["--engine", "cpu", "--explain"])
    assert run.code == 0, run.tail()
    for layer in ("moved to the card", "forward", "backward", "optimizer", "cuBLAS workspace"):
        assert layer in run.stdout, run.stdout


def test_the_layers_add_up_to_the_run(warm_runs: WarmRuns, tmp_path: Path) -> None:
    trace = tmp_path / "gpt2.trace"
    run = warm_runs.run(ZOO / "hf_gpt2.py", engine="cpu", trace=trace)
    assert run.code == 0, run.tail()
    layers = layers_of(load(trace))
    assert layers[-1].peak_allocated_bytes == run.peak["allocated_bytes"]
    assert layers[-1].peak_reserved_bytes == run.peak["reserved_bytes"]
    allocated = [layer.peak_allocated_bytes for layer in layers]
    assert allocated == sorted(allocated)
    assert layers[0].peak_allocated_bytes > 0
    assert any("attention by efficient (not flash: not in half precision)" in layer.what for layer in layers)


def test_every_allocation_has_its_operator_phase_and_module(warm_runs: WarmRuns, tmp_path: Path) -> None:
    trace = tmp_path / "gpt2.trace"
    assert warm_runs.run(ZOO / "hf_gpt2.py", engine="cpu", trace=trace).code == 0
    captured = load(trace)
    origins = [
        captured.origin(origin)
        for action, origin in zip(captured.memory.action, captured.memory.origin, strict=True)
        if ACTIONS[action] == "alloc"
    ]
    assert all(each.operator and each.phase for each in origins)
    mlp = "GPT2LMHeadModel.transformer.h.1.mlp.c_fc"
    for phase, operator in (("forward", "aten.addmm.default"), ("backward", "aten.mm.default")):
        found = [each for each in origins if each.phase == phase and each.module == mlp]
        assert operator in {each.operator for each in found}, (phase, found[:5])
    assert "efficient" in {each.kernel for each in origins if each.operator == "aten.scaled_dot_product_attention"}


def test_the_script_sees_the_card(cpu_run: RunForetell) -> None:
    run = cpu_run(
        """
        import torch
        properties = torch.cuda.get_device_properties(0)
        print("CARD", torch.cuda.is_available(), torch.cuda.get_device_name(), torch.cuda.get_device_capability())
        print("MEMORY", properties.total_memory, properties.multi_processor_count)
        with torch.cuda.stream(torch.cuda.Stream()), torch.autocast("cuda", torch.bfloat16):
            product = torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
        print("TYPE", product.dtype, product.device, torch.cuda.memory_allocated() > 0)
        print("KNOWN", torch.cuda.memory_stats()["allocated_bytes.all.peak"] == torch.cuda.max_memory_allocated())
        """
    )
    assert run.code == 0, run.tail()
    assert printed(run, "CARD") == ["True NVIDIA GeForce RTX 3060 (8, 6)"]
    assert printed(run, "MEMORY") == [f"{run.result['gpu']['total_bytes']} 28"]
    assert printed(run, "TYPE") == ["torch.bfloat16 cuda:0 True"]
    assert printed(run, "KNOWN") == ["True"]


def test_allocator_options_count(cpu_run: RunForetell) -> None:
    text = "import torch\nkept = [torch.empty(3 << 20, dtype=torch.uint8, device='cuda') for _ in range(9)]\n"
    plain = cpu_run(text)
    expandable = cpu_run(text, environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    allocator = CachingAllocator()
    for _ in range(9):
        allocator.malloc(3 << 20)
    assert plain.peak["reserved_bytes"] == allocator.peak_reserved_bytes
    assert expandable.code == 0, expandable.tail()
    assert expandable.peak["allocated_bytes"] == plain.peak["allocated_bytes"]


@pytest.mark.parametrize(
    "setting",
    [
        "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'roundup_power2_divisions:4'",
        "torch.cuda.memory._set_allocator_settings('roundup_power2_divisions:4')",
    ],
    ids=["environment", "call"],
)
def test_allocator_options_that_the_script_sets_count_too(cpu_run: RunForetell, setting: str) -> None:
    run = cpu_run(f"import torch\n{setting}\nkept = torch.empty(1_800_000, dtype=torch.uint8, device='cuda')\n")
    assert run.code == 0, run.tail()
    assert run.peak["allocated_bytes"] == AllocatorSettings(power2_divisions=(4,) * 16).round_size(1_800_000) == 1835008
    assert not any("attribution is unavailable" in caveat for caveat in run.result["caveats"])


def test_torch_compile_is_left_out_with_a_caveat(cpu_run: RunForetell) -> None:
    run = cpu_run("""
        import torch
        model = torch.compile(torch.nn.Linear(64, 64).cuda())
        step = torch.compile(mode="max-autotune")(lambda x: model(x).relu().sum())
        step(torch.randn(8, 64, device="cuda")).backward()
        print("DONE", model.weight.grad.shape)
    """)
    assert run.code == 0, run.tail()
    assert printed(run, "DONE")
    assert sum("skips torch.compile" in caveat for caveat in run.result["caveats"]) == 1


# --- the self-test ----------------------------------------------------------------------------------------------------

RUNS_THE_SELF_TEST = """
import torch
from foretell_child.engines.python_cuda import self_test
torch.cuda.init()
parts, begin = {}, 0
name = None
def mark(new):
    global begin, name
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    if name is not None:
        parts[name] = [event["size"] for event in events[begin:] if event["action"] == "alloc"]
    begin, name = len(events), new
self_test.program(torch, mark)
print("DIFFERENCE", self_test.first_difference(parts))
"""


@pytest.mark.parametrize("gpu", ["t4", "a100-40gb", "h100-80gb"])
def test_a_card_makes_the_allocations_the_self_test_expects(gpu: str, warm_runs: WarmRuns, tmp_path: Path) -> None:
    """On the virtual GPU where there is one: the list in the self-test is the truth, not what the engine does."""
    (tmp_path / "script.py").write_text(RUNS_THE_SELF_TEST)
    run = warm_runs.run(tmp_path / "script.py", gpu=gpu, engine="auto")
    assert run.code == 0, run.tail()
    assert printed(run, "DIFFERENCE") == ["None"]


def test_a_torch_that_fails_the_self_test_is_refused(tmp_path: Path) -> None:
    """The hooks are loaded as the bootstrap loads them, with one number of the self-test changed."""
    package = ROOT / "src" / "foretell"
    capture = {"directory": str(tmp_path), "engine": "cpu", "isolation": "none"}
    script = f"""
import sys
from types import ModuleType
package = sys.modules["foretell_child"] = ModuleType("foretell_child")
package.__path__ = [{str(package)!r}]
from foretell_child import inside
inside.install({capture!r})
import torch
from foretell_child.engines.python_cuda import self_test
self_test.EXPECTED["forward"] = [1]
torch.ones(3, device="cuda")
print("went on")
"""
    card = "name=X;count=1;total=8589934592;context=0;major=8;minor=0;sms=108;threads_per_sm=2048"
    if HAS_CUDA:
        pytest.skip("where torch has CUDA it needs a driver, which this test does not preload")
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "FORETELL_DEVICE": card}
    )
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert "went on" not in ended.stdout
    lines = [json.loads(line) for path in tmp_path.glob("journal-*.jsonl") for line in path.read_text().splitlines()]
    refused = [line for line in lines if line["kind"] == "unsupported"]
    assert len(refused) == 1
    assert "self-test failed (forward" in refused[0]["what"]
    assert "2.13" in refused[0]["hint"]


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_step_has_a_time_and_the_memory_does_not_change(cpu_run: RunForetell) -> None:
    script = TRAIN.format(device="cuda")
    plain, timed = cpu_run(script, gpu="a100-40gb"), cpu_run(script, gpu="a100-40gb", time=True)
    assert "time" not in plain.result
    assert {**plain.result["peak"], "blocks": []} == {**timed.result["peak"], "blocks": []}
    classes = {each["class"] for each in timed.result["kernels"]}
    assert {"conv", "conv_backward", "batch_norm", "elementwise", "gemm", "norm", "foreach", "indexing"} <= classes
    assert timed.result["unknown_share"] < 0.05
    time = timed.result["time"]
    assert 0 < time["step_low_ms"] <= time["step_ms"] <= time["step_high_ms"]
    assert {"forward", "backward", "optimizer"} <= set(time["phases"])


@pytest.mark.skipif(not HAS_CUDA, reason="compares with the virtual GPU")
def test_a_step_keeps_the_gpu_as_busy_as_on_the_virtual_gpu(cpu_run: RunForetell) -> None:
    script = TRAIN.format(device="cuda").replace("16, 3, 16, 16", "2048, 3, 16, 16").replace("(16,", "(2048,")
    ours, theirs = (cpu_run(script, gpu="t4", time=True, engine=engine).result for engine in ("cpu", "virtual"))
    assert ours["time"]["gpu_busy_ms"] == pytest.approx(theirs["time"]["gpu_busy_ms"], rel=0.15)
    of_conv = [
        next(each["ms"] for each in found["kernels"] if each["class"] == "conv_backward") for found in (ours, theirs)
    ]
    assert of_conv[0] == of_conv[1]
