"""Who holds the memory: against what the script itself knows of its tensors, and against PyTorch's own snapshot."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from capture_folder import SEGMENT, CaptureFolder
from conftest import HAS_CUDA, ForetellRun, lines_of
from foretell.analysis.lifetimes import attribute
from foretell.cli import main
from foretell.records import CATEGORIES, Attribution, Block
from foretell.report.holders import blocks_at_peak, by_category, by_module, holders, timeline
from foretell.trace import load
from foretell.units import MIB
from warm_runs import WarmRuns

TRAIN = """
import json, sys, torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(256, 1024), nn.BatchNorm1d(1024), nn.Linear(1024, 64)
    def forward(self, x):
        hidden = torch.relu(self.norm(self.first(x)))
        return self.last(hidden)
def rounded(tensors):
    return sum(-(-t.numel() * t.element_size() // 512) * 512 for t in tensors)
net = Net().cuda()
optimizer = torch.optim.Adam(net.parameters())
for step in range(3):
    x, y = torch.randn(4096, 256).cuda(), torch.randint(64, (4096,), device="cuda")
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    if step == 2:  # the peak is made here, with all gradients and all state there
        big = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
        snapshot = torch.cuda.memory._snapshot()["segments"]
        parameters = list(net.parameters())
        print("KNOWN", json.dumps({
            "parameter": rounded(parameters), "gradient": rounded(p.grad for p in parameters),
            "buffer": rounded(net.buffers()), "big": rounded([big]), "xy": rounded([x, y]),
            "optimizer_state": rounded(t for s in optimizer.state.values() for t in s.values() if t.is_cuda),
        }))
        print("SNAPSHOT", json.dumps([
            [block["address"], block["size"], block["requested_size"]] for segment in snapshot
            for block in segment["blocks"] if block["state"] == "active_allocated"
        ]))
        print("SEGMENTS", json.dumps([[segment["address"], segment["total_size"]] for segment in snapshot]))
        del big
    optimizer.step()
    optimizer.zero_grad()
"""


LINES = {"forward": ("loss =", "hidden =", "self.last("), "backward": ("backward",), "optimizer": ("step()",)}


class Attributed:
    def __init__(self, run: ForetellRun, attribution: Attribution) -> None:
        self.run = run
        self.attribution = attribution
        self.peak: list[Block] = blocks_at_peak(attribution)

    def said(self, mark: str) -> Any:
        return json.loads(lines_of(self.run, mark)[0])


def attributed(warm_runs: WarmRuns, folder: Path, script: str, **options: Any) -> Attributed:
    (folder / "train.py").write_text(dedent(script))
    run = warm_runs.run(folder / "train.py", trace=folder / "a.trace", **options)
    assert run.result, run.tail()
    return Attributed(run, attribute(load(folder / "a.trace"), device=0))


@pytest.fixture(params=["auto", "cpu"])
def trained(warm_runs: WarmRuns, tmp_path: Path, request: pytest.FixtureRequest) -> Attributed:
    return attributed(warm_runs, tmp_path, TRAIN, engine=request.param)


def test_each_category_has_the_bytes_of_its_tensors(trained: Attributed) -> None:
    known = trained.said("KNOWN")
    found = by_category(trained.peak)
    for category in ("parameter", "gradient", "buffer", "optimizer_state"):
        assert found[category] == known[category], category  # type: ignore[index]
    big, *others = trained.peak
    assert (big.bytes, big.module, big.phase) == (known["big"], None, "other")
    batch = [b for b in others if b.category == "input" and b.step == 2]
    assert sum(b.bytes for b in batch) == known["xy"]


def test_the_blocks_at_the_peak_are_those_of_pytorchs_snapshot(trained: Attributed) -> None:
    ours = {(b.address, b.bytes, b.requested_bytes) for b in trained.peak}
    if trained.run.result["engine"] == "cpu":  # whose snapshot does not tell what was asked for
        ours = {(address, size, size) for address, size, _ in ours}
    assert ours == {tuple(block) for block in trained.said("SNAPSHOT")}
    segments = {(segment.address, segment.bytes) for segment in trained.attribution.segments}
    assert segments == {tuple(segment) for segment in trained.said("SEGMENTS")}
    for segment in trained.attribution.segments:
        assert [offset for offset, _, _ in segment.parts] == sorted(offset for offset, _, _ in segment.parts)
        assert sum(size for _, size, _ in segment.parts) == segment.bytes


def test_every_block_knows_its_module_phase_step_and_line(trained: Attributed) -> None:
    blocks = trained.attribution.blocks
    made = {(b.module, b.phase) for b in blocks if b.category in ("activation", "temporary", "gradient")}
    for module in ("Net.first", "Net.norm", "Net.last"):
        assert (module, "forward") in made
        assert (module, "backward") in made
    names = {b.name for b in blocks if b.category == "gradient" and b.step == 1}
    parameters = {f"Net.{layer}.{kind}" for layer in ("first", "norm", "last") for kind in ("weight", "bias")}
    assert names == parameters
    states = {b.name for b in blocks if b.category == "optimizer_state"}
    assert states >= {f"{name} ({state})" for name in parameters for state in ("exp_avg", "exp_avg_sq")}
    lines = TRAIN.splitlines()
    for block in blocks:
        assert block.where is not None
        line = lines[int(block.where.rpartition(":")[2]) - 1]
        assert any(word in line for word in LINES.get(block.phase, ("",))), (block, line)


def test_the_json_adds_up(trained: Attributed) -> None:
    peak = trained.run.peak
    assert list(peak["by_category"]) == list(CATEGORIES)
    assert sum(peak["by_category"].values()) == peak["allocated_bytes"]
    assert peak["allocated_bytes"] + peak["fragmentation_bytes"] + peak["slack_bytes"] == peak["reserved_bytes"]
    assert peak["blocks"] == sorted(peak["blocks"], key=lambda block: -block["bytes"])
    assert sum(each["bytes"] for each in peak["by_module"]) == peak["allocated_bytes"]
    assert peak["num_blocks"] == len(trained.peak)
    shown = trained.run.result["timeline"]
    assert max(shown["allocated_bytes"]) == peak["allocated_bytes"]
    assert max(shown["reserved_bytes"]) == peak["reserved_bytes"]
    for number, allocated in enumerate(shown["allocated_bytes"]):
        assert sum(sizes[number] for sizes in shown["by_category"].values()) == allocated


CHECKPOINTED = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 2048), nn.Linear(2048, 256)
    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant={reentrant})
        return x
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net(torch.randn(1024, 256, device="cuda", requires_grad=True)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_is_told_apart(warm_runs: WarmRuns, tmp_path: Path, reentrant: bool) -> None:
    found = attributed(warm_runs, tmp_path, CHECKPOINTED.replace("{reentrant}", str(reentrant)))
    of = Counter((b.phase, b.category, b.module) for b in found.attribution.blocks if b.bytes >= MIB)
    for number in range(3):
        up = f"Net.blocks.{number}.up"
        assert of["recomputation", "activation", up] >= 3
        assert of["forward", "temporary", up] >= 3
        assert not of["forward", "activation", up]
        assert of["backward", "temporary", f"Net.blocks.{number}.down"] >= 3


SHARDED = """
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
net = nn.Sequential(*(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(3))).cuda()
shard
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    net(torch.randn(256, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OWN_OPTIMIZER = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 8)).cuda()
states = {}
for step in range(6):
    net(torch.randn(64, 256).cuda()).sum().backward()
    with torch.no_grad():
        for p in net.parameters():
            state = states.setdefault(p, {})
            if "velocity" not in state:
                state["velocity"] = torch.zeros_like(p)
            p.sub_(state["velocity"].mul_(0.9).add_(p.grad), alpha=0.1)
            p.grad = None
"""


def test_the_state_of_an_optimizer_that_is_not_of_torch_is_found_by_its_parameters(
    warm_runs: WarmRuns, tmp_path: Path
) -> None:
    done = attributed(warm_runs, tmp_path, OWN_OPTIMIZER)
    states = {block.name: block.bytes for block in done.attribution.blocks if block.category == "optimizer_state"}
    assert states == {
        "Sequential.0.weight (velocity)": 256 * 512 * 4, "Sequential.0.bias (velocity)": 512 * 4,
        "Sequential.1.weight (velocity)": 512 * 8 * 4, "Sequential.1.bias (velocity)": 512,
    }  # fmt: skip


NO_MODULE = """
import torch
data = torch.randn(1000, 1000).cuda()
weight = torch.randn(512, 512, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(4):
    ((torch.randn(1024, 512).cuda() @ weight).square() @ weight).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


LAZY = """
import torch
from torch import nn
class Refusing(nn.Module):
    def named_buffers(self, *args, **kwargs):
        raise RuntimeError("no buffers here")
    def forward(self, x):
        return x
model = nn.Sequential(nn.LazyLinear(512), nn.ReLU(), nn.LazyLinear(64)).cuda()
model(torch.zeros(8, 256, device="cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    Refusing()(model(torch.zeros(8, 256, device="cuda"))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_modules_whose_tensors_cannot_be_listed_yet_do_not_end_the_script(warm_runs: WarmRuns, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LAZY)
    done = warm_runs.run(tmp_path / "train.py", cwd=tmp_path)
    assert done.code == 0, done.tail()
    assert done.peak["by_category"]["parameter"] == (512 * 256 + 512 + 64 * 512) * 4 + 512
    assert [caveat for caveat in done.result["caveats"] if "no buffers here" in caveat]


def test_a_forward_pass_that_calls_no_module_is_part_of_its_step(warm_runs: WarmRuns, tmp_path: Path) -> None:
    """GPyTorch's models are called so."""
    done = attributed(warm_runs, tmp_path, NO_MODULE)
    assert done.run.result["phases"] == ["forward", "backward", "optimizer"]
    (before,) = [each for each in done.run.result["outside_steps"] if each["kind"] == "before"]
    assert before["peak_allocated_bytes"] == (1000 * 1000 * 4 // 512 + 1) * 512 + 512 * 512 * 4
    activations = [b.bytes for b in done.attribution.blocks if b.category == "activation" and b.step == 0]
    assert activations.count(1024 * 512 * 4) == 4, "the batch, and what three operators keep"


SHARD = {
    "FSDP": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP; "
    "net = FSDP(net, use_orig_params=True, device_id=0)",
    "fully_shard": "from torch.distributed.fsdp import fully_shard; "
    "[fully_shard(part) for part in net]; fully_shard(net)",
}


@pytest.mark.skipif(not HAS_CUDA, reason="the CPU engine refuses FSDP")
@pytest.mark.parametrize("how", SHARD)
def test_sharded_models_have_parameters_and_state(warm_runs: WarmRuns, tmp_path: Path, how: str) -> None:
    found = attributed(warm_runs, tmp_path, SHARDED.replace("shard\n", f"{SHARD[how]}\n", 1))
    sizes = by_category(found.peak)
    weights = 3 * (2 * 512 * 2048 + 2048 + 512) * 4
    assert sizes["parameter"] >= weights
    assert sizes["optimizer_state"] == pytest.approx(2 * weights, rel=0.01)
    assert sum(sizes.values()) == found.run.peak["allocated_bytes"]
    assert any(b.category == "activation" and b.module and b.module.endswith("1.0") for b in found.attribution.blocks)


def test_a_job_that_runs_out_says_who_held_the_memory(warm_runs: WarmRuns, tmp_path: Path) -> None:
    found = attributed(warm_runs, tmp_path, TRAIN.replace("randn(4096", "randn(400000").replace("(4096,)", "(400000,)"),
                       gpu="4GiB,sm86")  # fmt: skip
    assert found.run.result["oom"]["phase"] == "forward"
    sizes = by_category(found.peak)
    assert sizes["parameter"] > MIB
    assert sizes["activation"] > sizes["input"] > 300 * MIB
    assert by_module(found.peak)[0][0] in ("Net.first", "Net.norm", "Net")


def test_the_frames_of_modules_stay_out_of_the_places_shown(warm_runs: WarmRuns, tmp_path: Path) -> None:
    script = TRAIN.replace("return self.last(hidden)", "return self.last(hidden).no_such_thing")
    (tmp_path / "train.py").write_text(script)
    run = warm_runs.run(tmp_path / "train.py")
    assert run.code == 1
    assert "train.py:10: AttributeError" in run.stderr


def folder_of(tmp_path: Path) -> CaptureFolder:
    return CaptureFolder(tmp_path).torch().history(
        ("segment_alloc", SEGMENT, 2 * MIB, 1), ("alloc", SEGMENT, 1000, 2), ("alloc", SEGMENT + 1024, 512, 3),
        ("free_requested", SEGMENT + 1024, 512, 4), ("free_completed", SEGMENT + 1024, 512, 4),
        ("alloc", SEGMENT + 1024, 2048, 5),
    ).end(3072, 2 * MIB, (3072, 2 * MIB))  # fmt: skip


def test_a_label_holds_for_the_block_that_lay_there_then(tmp_path: Path) -> None:
    """Of two blocks at one address the first is named; the second came later."""
    folder = folder_of(tmp_path)
    names = ["Net.weight", "forward"]
    folder.owners(names, marks=[(0, 0, 1, 0, -1, -1)], labels=[(0, 2, SEGMENT + 1024 + 256, 0, 0)])
    blocks = attribute(folder.trace(), device=0).blocks
    assert [(b.name, b.category) for b in blocks] == [
        (None, "temporary"), ("Net.weight", "parameter"), (None, "temporary"),
    ]  # fmt: skip
    assert [(b.bytes, b.requested_bytes) for b in blocks] == [(1024, 1000), (512, 512), (2048, 2048)]
    assert [(b.begin, b.end) for b in blocks] == [(1, None), (2, 3), (5, None)]


def test_a_workspace_is_known_by_time_address_and_size(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    folder.native(9, "workspace", SEGMENT + 1024, 2048, 0, time_us=6)
    folder.native(9, "workspace", SEGMENT, 2048, 0, time_us=6)  # of another size: somebody else's memory
    assert [b.category for b in attribute(folder.trace(), device=0).blocks] == ["temporary", "temporary", "workspace"]


def test_a_trace_without_marks_still_adds_up(tmp_path: Path) -> None:
    found = attribute(folder_of(tmp_path).trace(), device=0)
    assert by_category(blocks_at_peak(found))["temporary"] == 3072
    assert found.fragmentation_bytes == 2 * MIB - 3072
    assert found.slack_bytes == 0
    assert max(point.allocated_bytes for point in timeline(found, max_points=2)) == 3072
    assert holders(blocks_at_peak(found))[0].num_blocks == 2


def test_repeated_layers_are_one_holder(warm_runs: WarmRuns, tmp_path: Path) -> None:
    found = attributed(warm_runs, tmp_path, CHECKPOINTED.replace("{reentrant}", "False"))
    rows = {(holder.category, holder.module): holder for holder in holders(found.peak)}
    weights = rows["parameter", "Net.blocks.*.up"]
    assert weights.num_blocks == 6
    assert weights.bytes == 3 * (256 * 2048 * 4 + 2048 * 4)
    assert sum(holder.bytes for holder in rows.values()) == found.run.peak["allocated_bytes"]


def test_a_script_whose_name_is_not_utf8_is_attributed_but_for_its_lines(warm_runs: WarmRuns, tmp_path: Path) -> None:
    script = tmp_path / os.fsdecode(b"tr\xffin.py")
    script.write_text("import torch\nx = torch.ones(1 << 20, device='cuda', requires_grad=True)\nx.sum().backward()\n")
    run = warm_runs.run(script, trace=tmp_path / "x.trace")
    assert run.code == 0, run.tail()
    assert sum(run.peak["by_category"].values()) == run.peak["allocated_bytes"]
    assert "not UTF-8" in " ".join(run.result["caveats"])
    assert main(["report", str(tmp_path / "x.trace"), "--report", str(tmp_path / "x.html")]) == 0
