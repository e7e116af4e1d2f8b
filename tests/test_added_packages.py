"""What people add to their training, and what only runs on a GPU: each script of tests/features trains for a few steps,
foretell's peaks are PyTorch's own, and the feature does to memory what it is there for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import FEATURES, ForetellRun, RunForetell, lines_of, with_its_own_peaks
from warm_runs import WarmRuns

MIB = 1 << 20


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not in this stack: {', '.join(missing)}")


def is_xformers_made_for_this_torch() -> bool:
    """A wheel of xformers says which torch it was compiled for, and refuses to load its kernels into another."""
    spec = importlib.util.find_spec("xformers")
    if spec is None or spec.origin is None:
        return False
    built = json.loads((Path(spec.origin).parent / "cpp_lib.json").read_text())["version"]["torch"]
    return built.split("+")[0] == importlib.metadata.version("torch").split("+")[0]


def numbers_of(run: ForetellRun, start: str) -> list[int]:
    (line,) = lines_of(run, start)
    return [int(number) for number in line.split()]


def has_caveat(run: ForetellRun, text: str) -> bool:
    return any(text in caveat for caveat in run.result["caveats"])


@pytest.fixture
def run_warm(warm_runs: WarmRuns, tmp_path: Path) -> RunForetell:
    """As `run_feature`, which starts a process for one script of each package: it has the hooks before the package."""

    def run(name: str, **options: Any) -> ForetellRun:
        return with_its_own_peaks(warm_runs.run(FEATURES / f"{name}.py", cwd=tmp_path, **options))

    return run


# --- bitsandbytes -----------------------------------------------------------------------------------------------------


@needs("bitsandbytes")
def test_8_bit_optimizers_keep_a_byte_a_value_and_paged_ones_keep_it_off_the_card(run_warm) -> None:
    run = run_warm("bitsandbytes_optimizers")
    for name, bytes_per_parameter in {"AdamW": 8, "Adam8bit": 2, "PagedAdamW8bit": 0, "Lion8bit": 1}.items():
        num_parameters, state_bytes = numbers_of(run, f"{name} ")
        assert state_bytes / num_parameters == pytest.approx(bytes_per_parameter, abs=0.05), name
    assert has_caveat(run, "of managed memory")


@needs("bitsandbytes")
def test_quantised_layers_take_a_byte_or_half_a_byte_a_weight(run_warm) -> None:
    run = run_warm("bitsandbytes_layers")
    for name, bytes_per_weight in {"Linear8bitLt": 1, "Linear4bit plain": 0.5625, "Linear4bit double": 0.517}.items():
        num_weights, weight_bytes = numbers_of(run, f"{name} ")
        assert weight_bytes / num_weights == pytest.approx(bytes_per_weight, abs=0.02), name


@needs("bitsandbytes", "peft", "transformers")
def test_qlora_holds_the_base_in_4_bits_and_trains_the_adapters_alone(run_warm) -> None:
    run = run_warm("qlora")
    num_weights, weight_bytes = numbers_of(run, "4bit ")
    assert weight_bytes == num_weights / 2
    num_trained, num_adapters = numbers_of(run, "trained ")
    assert num_trained == num_adapters > 0
    assert lines_of(run, "optimizer") == ["AdamW"]
    assert len(run.result["steps"]) == 3


@needs("bitsandbytes", "transformers")
def test_trainer_takes_the_8_bit_optimizer_and_checkpointing(run_warm) -> None:
    run = run_warm("trainer_options")
    num_weights, state_bytes = numbers_of(run, "state ")
    assert state_bytes / num_weights == pytest.approx(2, abs=0.1)


@needs("bitsandbytes")
def test_what_an_extension_writes_is_no_longer_known_and_the_rest_is(run_warm) -> None:
    run = run_warm("extension_writes")
    assert lines_of(run, "before") == ["0.0"]
    assert lines_of(run, "untouched") == ["64.0"]
    assert lines_of(run, "filled") == ["1.0"], "a stand-in, not the zero that was there before"
    assert lines_of(run, "labels") == ["True"]
    assert run.result["num_unknown_reads"] == 2


# --- kernels in Triton ------------------------------------------------------------------------------------------------


@needs("triton")
def test_what_a_triton_kernel_writes_is_no_longer_known_and_what_it_reads_is(run_warm, tmp_path: Path) -> None:
    run = run_warm("triton_kernel", environment={"TRITON_CACHE_DIR": str(tmp_path / "triton")})
    assert lines_of(run, "known before") == ["0 True"]
    assert lines_of(run, "only read") == ["True"]
    assert run.result["num_unknown_reads"] == 2


@needs("liger_kernel", "transformers")
def test_ligers_fused_loss_never_holds_all_logits(run_warm) -> None:
    run = run_warm("liger")
    logits, fused_peak = numbers_of(run, "fused loss ")
    assert fused_peak < logits < numbers_of(run, "plain loss ")[1]
    assert lines_of(run, "norm")[0].startswith("LigerRMSNorm")


# --- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not is_xformers_made_for_this_torch(), reason="no xformers made for this torch")
def test_xformers_attention_does_not_hold_the_scores(run_feature) -> None:
    run = run_feature("xformers_attention")
    assert run.peak["allocated_bytes"] < numbers_of(run, "scores ")[0]


@needs("transformers")
@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_a_script_without_flash_attn_falls_back_as_it_does_anywhere(run_warm) -> None:
    run = run_warm("flash_attention_missing")
    assert lines_of(run, "import") == ["No module named 'flash_attn'"]
    assert lines_of(run, "attention") == ["sdpa"]


# --- DeepSpeed --------------------------------------------------------------------------------------------------------


@needs("deepspeed")
def test_deepspeed_trains_in_one_process_at_every_stage(run_feature) -> None:
    run = run_feature("deepspeed_zero")
    stages = [line.split() for line in lines_of(run, "stage")]
    assert [stage for stage, *_ in stages] == ["0", "1", "2", "3", "2"]
    for stage, precision, num_steps, num_skipped in stages:
        assert (num_steps, num_skipped) == ("3", "0"), (stage, precision)


@needs("deepspeed")
def test_deepspeeds_own_optimizers_need_no_compiler(run_feature) -> None:
    run = run_feature("deepspeed_fused_adam", environment={"CUDA_HOME": "/no/toolkit", "CXX": "/no/compiler"})
    moments = 2 * 4 * (64 * 64 + 64)
    assert numbers_of(run, "states") == [moments, moments]


# --- torchvision, several cards, the profiler -------------------------------------------------------------------------


@needs("torchvision")
@pytest.mark.parametrize(("assume", "num_boxes"), [("low", 0), ("high", 96)])
def test_detectors_train_and_find_as_many_boxes_as_assumed(run_warm, assume: str, num_boxes: int) -> None:
    run = run_warm("detection", assume=assume)
    assert int(lines_of(run, "FasterRCNN")[0].split()[-1]) == num_boxes
    assert len(lines_of(run, "RetinaNet")) == 1
    assert has_caveat(run, f"decides a size, --assume {assume}")


@needs("accelerate")
def test_two_cards_in_one_process_are_told_apart(run_warm) -> None:
    run = run_warm("two_cards", environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert lines_of(run, "devices") == ["[0, 0, 1, 1, 1, 1]"]
    assert numbers_of(run, "replicas ")[0] > 8 * MIB, "DataParallel copies the weights to the second card"
    assert has_caveat(run, "2 devices were used (reserved: cuda:0 ")


def test_a_profiler_in_the_script_works_and_a_caveat_says_what_it_sees(run_warm) -> None:
    run = run_warm("profiler")
    assert numbers_of(run, "events ")[0] > 10
    assert has_caveat(run, "the script enabled a profiler")
