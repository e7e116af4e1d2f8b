"""Alternatives are really run: a change made from outside takes the bytes it takes when the author writes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from conftest import TESTS
from foretell import api, gpus
from foretell.advice import advise
from foretell.advice.advise import _compatible
from foretell.advice.alternatives import Alternative, alternatives
from foretell.advice.held import freed_at, held_into_next_forward, release_earlier
from foretell.advice.survey import Optimizer, Survey
from foretell.advice.trials import Trial, Trials
from foretell.allocator import CachingAllocator
from foretell.allocator.play import play_again
from foretell.analysis.leaks import find_leaks
from foretell.cli.main import main
from foretell.jobs import CaptureOptions, Job
from foretell.records import Advice, Attribution, Block, Span
from foretell.runs import Warm
from foretell.trace import ACTIONS, MemoryEvents
from foretell.units import MIB

TRANSFORMER = TESTS / "advised_transformer.py"
GPU = gpus.find("rtx-3060")


def job_of(*words: str | Path, gpu: str = "rtx-3060") -> Job:
    return Job(command=tuple(map(str, words)), gpu=gpus.find(gpu), options=CaptureOptions(steps="all"))


Try = Callable[..., Trial]


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    # Most of the import of bitsandbytes, which itself initialises CUDA.
    with Warm(modules=["torch._inductor.compile_fx"]) as processes:
        yield processes


@pytest.fixture(scope="module")
def attempt(warm: Warm) -> Try:
    """`attempt("--batch", "1", word="autocast=bfloat16")`: the transformer, in a fork."""

    @cache
    def attempt(*arguments: str, script: Path = TRANSFORMER, word: str | None = None, is_survey: bool = False) -> Trial:
        trials = Trials(job_of(script, *arguments), warm=warm)
        return trials.run(GPU, words=[word] if word else [], is_survey=is_survey)

    return attempt


@pytest.mark.parametrize(
    ("word", "plain", "written"),
    [
        ("checkpoint=__main__.Block", [], ["--checkpointing"]),
        ("autocast=bfloat16", [], ["--autocast"]),
        ("optimizer-implementation=for-loop", ["--batch", "1"], ["--batch", "1", "--foreach", "0"]),
        ("optimizer-implementation=fused", ["--batch", "1"], ["--batch", "1", "--fused", "1"]),
        ("optimizer=adafactor", ["--batch", "1"], ["--batch", "1", "--optimizer", "Adafactor"]),
        ("optimizer=8bit", ["--batch", "1"], ["--batch", "1", "--optimizer", "8bit"]),
        ("zero-grad-to-none", ["--keep-gradients"], []),
        ("zero-grad-after-step", ["--zero", "late"], ["--zero", "after-step"]),
    ],
)
def test_a_change_from_outside_takes_what_it_takes_when_it_is_written(
    attempt: Try, word: str, plain: list[str], written: list[str]
) -> None:
    if "8bit" in word:
        pytest.importorskip("bitsandbytes", exc_type=ImportError)
    changed, by_author = attempt(*plain, word=word), attempt(*written)
    assert word.partition("=")[0] in changed.changes
    assert changed.estimate.peak == by_author.estimate.peak
    assert changed.estimate.steps == by_author.estimate.steps
    assert changed.estimate.peak.allocated_bytes < attempt(*plain).estimate.peak.allocated_bytes


def test_a_survey_finds_what_could_be_changed(attempt: Try) -> None:
    survey = attempt("--zero", "late", "--optimizer", "Adam", is_survey=True).survey
    assert survey is not None
    assert (survey.repeated_class, survey.repeated_count) == ("__main__.Block", 4)
    # A block keeps its norm, the hidden layer before and after GELU, but its output in any case; one is computed again.
    rows = 16 * 128
    assert survey.repeated_bytes == pytest.approx(3 * rows * (512 + 2 * 2048) * 4, rel=0.01)
    num_parameters = 4 * (2 * 512 + 512 * 2048 + 2048 + 2048 * 512 + 512) + 512 * 1024 + 1024
    assert survey.parameter_bytes == {"float32": 4 * num_parameters}
    assert survey.late_gradient_bytes == 4 * num_parameters
    assert not survey.is_autocast
    assert not survey.keeps_gradients
    (adam,) = survey.optimizers
    assert (adam.kind, adam.implementation, adam.has_fused) == ("torch.optim.adam.Adam", "foreach", True)
    assert adam.state_bytes == 8 * num_parameters


EPOCHS = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.zeros(2500, 256))
for _ in range(2):
    for (x,) in DataLoader(data, batch_size=1000, drop_last="--drop-last" in sys.argv):
        model(x.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_smaller_last_batch_is_found_and_dropped(attempt: Try, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("epochs") / "epochs.py"
    script.write_text(EPOCHS)
    plain = attempt(script=script, is_survey=True)
    assert plain.survey is not None
    assert plain.survey.has_smaller_batch
    changed, by_author = attempt(script=script, word="drop-last"), attempt("--drop-last", script=script)
    assert "drop-last" in changed.changes
    assert changed.estimate.steps == by_author.estimate.steps
    assert len(changed.estimate.steps) == 4 < len(plain.estimate.steps)
    assert changed.estimate.peak == by_author.estimate.peak
    assert not attempt("--drop-last", script=script, is_survey=True).survey.has_smaller_batch  # type: ignore[union-attr]


def test_a_survey_sees_what_is_done_already(attempt: Try) -> None:
    survey = attempt("--autocast", "--keep-gradients", "--fused", "1", "--checkpointing", is_survey=True).survey
    assert survey is not None
    assert survey.is_autocast
    assert survey.keeps_gradients
    assert survey.late_gradient_bytes == 0
    assert survey.optimizers[0].implementation == "fused"
    assert survey.repeated_bytes < MIB


CNN = """
import torch
from torch import nn
class Residual(nn.Module):
    def __init__(self, n):
        super().__init__()
        convolutions = [nn.Conv2d(n, n, 3, padding=1) for _ in range(2)]
        self.layers = nn.Sequential(convolutions[0], nn.BatchNorm2d(n), nn.ReLU(), convolutions[1])
    def forward(self, x):
        return (x + self.layers(x)).relu()
stages = [nn.Sequential(*(Residual(n) for _ in range(3)), nn.Conv2d(n, 2 * n, 2, 2)) for n in (16, 32)]
head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *stages, *head).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    loss = nn.functional.cross_entropy(model(torch.rand(32, 3, 64, 64).cuda()), torch.zeros(32).long().cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_blocks_are_checkpointed_rather_than_the_stages_they_are_part_of(attempt: Try, tmp_path: Path) -> None:
    script = tmp_path / "cnn.py"
    script.write_text(CNN)
    plain = attempt(script=script, is_survey=True)
    assert plain.survey is not None
    assert (plain.survey.repeated_class, plain.survey.repeated_count) == ("__main__.Residual", 6)
    changed = attempt(script=script, word="checkpoint=__main__.Residual")
    assert changed.reserved_bytes < 0.75 * plain.reserved_bytes


def test_a_job_that_is_neither_script_nor_module_is_started_anew_each_time(capfd: pytest.CaptureFixture[str]) -> None:
    code = f"print('hello'); import runpy; runpy.run_path({str(TRANSFORMER)!r})"
    with Trials(job_of(sys.executable, "-c", code)) as trials:
        assert trials.run(GPU, words=["zero-grad-after-step"]).changes == {"zero-grad-after-step": {}}
        assert trials._warm is not None
        assert not trials._warm.is_started
    assert capfd.readouterr().out == ""


# --- which apply ------------------------------------------------------------------------------------------------------


ADAM = Optimizer(
    kind="torch.optim.adam.Adam", implementation="foreach", has_fused=True, state_bytes=8 * MIB,
    large_state_bytes=8 * MIB, large_state_elements=2 * MIB,
)  # fmt: skip
SURVEY = Survey(
    repeated_class="__main__.Block", repeated_count=4, repeated_bytes=MIB, is_autocast=False,
    parameter_bytes={"float32": MIB, "bfloat16": 10}, optimizers=(ADAM,), keeps_gradients=True,
    late_gradient_bytes=MIB, has_smaller_batch=False, has_bitsandbytes=True,
)  # fmt: skip
BARE = Survey(
    repeated_class=None, repeated_count=0, repeated_bytes=0, is_autocast=True, parameter_bytes={"float32": MIB},
    optimizers=(replace(ADAM, kind="mine.Lion", implementation=None),), keeps_gradients=False, late_gradient_bytes=0,
    has_smaller_batch=False, has_bitsandbytes=False,
)  # fmt: skip


def words_of(survey: Survey, gpu: str = "rtx-3060", settings: str = "") -> list[str]:
    found = alternatives(survey, gpus.find(gpu), "2.15.0+cu132", least_bytes=1, allocator_settings=settings)
    return [word for each in found for word in each.words or (f"{each.variables}",)]


def test_only_what_would_be_a_change_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # ours, not the script's
    assert words_of(SURVEY) == [
        "checkpoint=__main__.Block", "autocast=bfloat16", "zero-grad-to-none", "zero-grad-after-step",
        "optimizer-implementation=fused", "optimizer-implementation=for-loop", "optimizer=adafactor", "optimizer=8bit",
        "(('PYTORCH_ALLOC_CONF', 'expandable_segments:True'),)",
    ]  # fmt: skip
    assert words_of(BARE, settings="max_split_size_mb:64") == [
        "(('PYTORCH_ALLOC_CONF', 'max_split_size_mb:64,expandable_segments:True'),)"
    ]
    assert words_of(BARE, settings="expandable_segments:True") == []


def test_a_card_without_bf16_gets_fp16() -> None:
    assert "autocast=float16" in words_of(SURVEY, "t4")


def test_8_bit_state_is_estimated_where_bitsandbytes_is_missing() -> None:
    found = alternatives(replace(SURVEY, has_smaller_batch=False, has_bitsandbytes=False), GPU, "2.6.0", least_bytes=1)
    (each,) = (each for each in found if each.words == ("optimizer=8bit",))
    assert each.saved_bytes == 8 * MIB - 2 * MIB - 4 * 2 * MIB // 256


def test_of_two_that_concern_the_same_the_better_one_is_combined() -> None:
    def tried(title: str, concerns: str, saved: int, basis: str = "measured") -> tuple[Alternative, Advice]:
        alternative = Alternative(concerns=concerns, title=title, how="", price="")  # type: ignore[arg-type]
        advice = Advice(
            title=title, how="", price="", saved_bytes=saved, peak_reserved_bytes=1, basis=basis  # type: ignore[arg-type]
        )  # fmt: skip
        return alternative, advice

    found = [
        tried("fused", "optimizer", 2), tried("for-loop", "optimizer", 2), tried("adafactor", "optimizer", 3),
        tried("8bit", "optimizer", 9, "estimated"), tried("bf16", "precision", 1),
    ]  # fmt: skip
    assert [each.title for each in _compatible(found)] == ["adafactor", "bf16"]


# --- the whole --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_forks")
def test_advice_says_what_makes_the_job_fit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "estimate.json"
    words = ["--gpu", "2GiB,sm86", "--advise", "--json", str(file), str(TRANSFORMER), "--batch", "512"]
    code = main(["run", *words, "--width", "256", "--fused", "1"])
    said = capfd.readouterr()
    assert code == 3, said.err
    result = json.loads(file.read_text())
    advice = {each["title"]: each for each in result["advice"]}
    checkpointing = advice["gradient checkpointing of the 4 Block modules"]
    assert checkpointing["basis"] == "measured"
    assert checkpointing["verdict"] == "fits"
    assert "checkpoint(block, x, use_reentrant=False)" in checkpointing["how"]
    saved = [each["saved_bytes"] for each in result["advice"]]
    assert len(saved) == 3, said
    assert saved[:-1] == sorted(saved[:-1], reverse=True)
    totals = {each["saved_bytes"] + each["peak_reserved_bytes"] for each in result["advice"]}
    assert len(totals) == 1, "all are counted from the same peak"
    assert totals.pop() > 2048 * MIB
    assert "2 of 3 make the job fit" in " ".join(said.out.split())
    assert "foretell: advice: trying gradient checkpointing of the 4 Block" in said.err
    assert result["advice"][-1]["title"].startswith("all combined: gradient checkpointing of the 4 Block")


@pytest.mark.usefixtures("in_forks")
def test_what_the_script_cannot_do_is_said_and_is_no_advice() -> None:
    job = job_of(TRANSFORMER, "--batch", "1", "--width", "16", "--refuse-bf16")
    estimate = api.run(job).estimate
    findings = advise(job, estimate)
    assert findings.advice == ()
    (not_tried,) = findings.not_tried
    assert not_tried.startswith("mixed precision in bfloat16: the script itself failed")
    assert not_tried.endswith("ValueError: only float32 here")


# --- leaks ------------------------------------------------------------------------------------------------------------


def block(begin: int, end: int | None, *, step: int, **given: object) -> Block:
    defaults = {
        "address": begin << 20, "bytes": 512, "requested_bytes": 4, "category": "activation", "name": None,
        "module": None, "operator": "aten::add", "phase": "forward", "where": "/home/me/train.py:7",
    }  # fmt: skip
    return Block(begin=begin, end=end, step=step, **{**defaults, **given})  # type: ignore[arg-type]


def test_what_every_step_leaves_behind_is_a_leak() -> None:
    kept = [block(10 * step, None, step=step, bytes=1024) for step in range(5)]
    passing = [block(10 * step + 1, 10 * step + 5, step=step, where="/home/me/train.py:8") for step in range(5)]
    (leak,) = find_leaks([*kept, *passing], 5)
    assert (leak.where, leak.bytes_per_step, leak.held_bytes, leak.num_blocks) == ("/home/me/train.py:7", 1024, 5120, 5)


def test_what_is_let_go_only_after_the_training_is_a_leak() -> None:
    kept = [block(10 * step, 100 + step, step=step) for step in range(5)]
    assert len(find_leaks([*kept, block(90, None, step=5)], 5)) == 1


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param([block(10 * s, None, step=s) for s in (3, 4)], id="of the last two steps alone"),
        pytest.param([block(10 * s, 10 * s + 12, step=s) for s in range(5)], id="held into the next step"),
        pytest.param([block(s, None, step=0) for s in range(5)], id="made in the first step"),
        pytest.param(
            [block(10 * s, None, step=s, category=c) for c in ("parameter", "optimizer_state") for s in range(5)],
            id="made to stay",
        ),
        pytest.param([block(10 * s, None, step=s, bytes=512 << 3 * s) for s in range(5)], id="never the same"),
        pytest.param([block(10 * s, None, step=s, operator=f"{s}") for s in range(5)], id="never by the same"),
        pytest.param([block(100 + s, None, step=5) for s in range(5)], id="after the last step"),
    ],
)
def test_what_is_not_more_after_each_step_is_no_leak(blocks: list[Block]) -> None:
    assert find_leaks([*blocks, block(49, None, step=4, where="elsewhere")], 5) == ()


def test_two_steps_are_too_few_to_see_a_leak() -> None:
    assert find_leaks([block(10 * step, None, step=step) for step in range(2)], 2) == ()


LOOP_OF_LOSSES = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
total, losses = 0, []
for _ in range(6):
    loss = model(torch.ones(8, 64, device="cuda")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {keep}
"""


@pytest.mark.parametrize(
    ("keep", "line"),
    [
        ("losses.append(loss)", 7),
        ("total = total + model(torch.ones(8, 64, device='cuda')).mean()", 11),
        ("total = total + loss", None),
        ("total += loss.item()", None),
    ],
)
def test_a_leak_of_a_real_run_is_found_with_its_line(attempt: Try, tmp_path: Path, keep: str, line: int | None) -> None:
    """A sum of losses that went through backward holds their graph, but nothing of it on the card."""
    script = tmp_path / "losses.py"
    script.write_text(LOOP_OF_LOSSES.format(keep=keep))
    leaks = attempt(script=script).estimate.leaks
    if line is None:
        assert leaks == ()
    else:
        assert f"{script}:{line}" in {leak.where for leak in leaks}


# --- what the loop's variables hold -----------------------------------------------------------------------------------


def events_of(*rows: tuple[str, int, int]) -> MemoryEvents:
    events = MemoryEvents()
    for time_us, (action, address, size) in enumerate(rows):
        events.time_us.append(time_us)
        events.action.append(ACTIONS.index(action))
        events.address.append(address)
        events.size.append(size)
        events.stream.append(0)
        events.device.append(0)
        events.stack.append(-1)
        events.origin.append(-1)
    return events


OUTPUTS = 30 * MIB
LOOP = events_of(
    ("alloc", 1, OUTPUTS),  # outputs of step 0
    ("alloc", 2, 100),  # a backward
    ("free_requested", 2, 100),
    ("free_completed", 2, 100),
    ("alloc", 3, OUTPUTS),  # outputs of step 1; then the name lets go of the others
    ("free_requested", 1, OUTPUTS),
    ("free_completed", 1, OUTPUTS),
    ("alloc", 2, 100),
)
SPANS = (
    Span(begin=0, step=0, phase="forward"), Span(begin=1, step=0, phase="backward"),
    Span(begin=4, step=1, phase="forward"), Span(begin=7, step=1, phase="backward"),
)  # fmt: skip


def attribution(*blocks: Block) -> Attribution:
    return Attribution(
        device=0,
        num_events=8, blocks=blocks, spans=SPANS, reserved=(), peak_event=4, at_peak=(), fragmentation_bytes=0,
        slack_bytes=0, segments=(),
    )  # fmt: skip


HELD = block(0, 5, step=0, address=1, bytes=OUTPUTS)


def test_outputs_of_a_step_that_live_into_the_next_forward_are_found() -> None:
    gradient = block(1, 5, step=0, phase="backward", category="gradient")
    in_time = block(0, 2, step=0)
    assert held_into_next_forward(attribution(HELD, gradient, in_time, block(4, None, step=1))) == [HELD]


def test_frees_are_moved_to_the_end_of_their_step() -> None:
    moved = freed_at(LOOP, {0: 4}, device=0)
    assert [ACTIONS[action] for action in moved.action] == [
        "alloc", "alloc", "free_requested", "free_completed", "free_requested", "free_completed", "alloc", "alloc",
    ]  # fmt: skip
    assert list(moved.address) == [1, 2, 2, 2, 1, 1, 3, 2]
    assert play_again(LOOP, CachingAllocator(), device=0).peak_reserved_bytes == 2 * OUTPUTS + 2 * MIB
    assert play_again(moved, CachingAllocator(), device=0).peak_reserved_bytes == OUTPUTS + 2 * MIB


def test_held_outputs_are_an_advice_with_their_line(attempt: Try, tmp_path: Path) -> None:
    """A real trace; the attribution holds the blocks of one line alone."""
    script = tmp_path / "holds.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(1024, 8192).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(4):\n"
        "    outputs = model(torch.ones(2048, 1024, device='cuda'))\n"
        "    several = outputs.detach().repeat(4, 1)\n"
        "    optimizer.zero_grad()\n"
        "    outputs.mean().backward()\n"
        "    optimizer.step()\n"
    )
    trace = attempt(script=script).trace
    events = trace.memory
    size = 4 * 2048 * 8192 * 4
    alloc, free = ACTIONS.index("alloc"), ACTIONS.index("free_requested")
    blocks, spans = [], []
    for begin in (n for n, s in enumerate(events.size) if s == size and events.action[n] == alloc):
        step, address = len(blocks), events.address[begin]
        later = range(begin, len(events.size))
        end = next((n for n in later if events.address[n] == address and events.action[n] == free), None)
        blocks.append(block(begin, end, step=step, address=address, bytes=size, where=f"{script}:6"))
        # The outputs are made right before; the name gets its next value right after.
        spans += [Span(begin=begin - 1, step=step, phase="forward"), Span(begin=begin + 3, step=step, phase="backward")]
    found = release_earlier(trace, replace(attribution(*blocks), spans=tuple(spans)))
    assert found is not None
    assert "holds.py:6" in found.title
    assert found.basis == "estimated"
    without = tmp_path / "lets_go.py"
    without.write_text(script.read_text() + "    del several\n")
    assert found.peak_reserved_bytes == attempt(script=without).reserved_bytes
    assert found.saved_bytes == size
