"""Hugging Face's `generate` runs to its maximum length, whatever the tokens would be, and says so once."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from conftest import lines_of
from warm_runs import WarmRuns

SCRIPT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

def gpt2():
    config = GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=2000, bos_token_id=1, eos_token_id=7, pad_token_id=0)
    return GPT2LMHeadModel(config).cuda().eval()

def t5():
    config = T5Config(
        d_model=64, d_ff=128, num_layers=2, num_heads=2, d_kv=32, vocab_size=2000, decoder_start_token_id=0
    )
    return T5ForConditionalGeneration(config).cuda().eval()

def generate(name, model, rows=3, **options):
    tokens = torch.randint(10, 2000, (rows, 12), device="cuda")
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12, **options)
    print(name, tuple(out.shape))

model = gpt2()
generate("greedy", model, do_sample=False)
generate("sampling", model, do_sample=True, top_p=0.9)
generate("beams", model, num_beams=3, early_stopping=True)
generate("static", model, do_sample=False, cache_implementation="static", disable_compile=True)
generate("assisted", model, rows=1, assistant_model=gpt2(), do_sample=False)
generate("encoder", t5(), num_beams=2)
"""
SHAPES = {
    "greedy": (3, 24), "sampling": (3, 24), "beams": (3, 24), "static": (3, 24), "assisted": (1, 24),
    "encoder": (3, 13),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["virtual", "cpu"])
def test_generation_ends_at_its_maximum_length(warm_runs: WarmRuns, tmp_path: Path, engine: Any) -> None:
    pytest.importorskip("transformers")
    if engine == "virtual" and pytest.importorskip("torch").version.cuda is None:
        pytest.skip("this torch has no CUDA")
    (tmp_path / "generate.py").write_text(SCRIPT)
    run = warm_runs.run(tmp_path / "generate.py", engine=engine, cwd=tmp_path)
    assert run.code == 0, run.tail()
    for name, shape in SHAPES.items():
        assert lines_of(run, name + " ") == [str(shape)]


def test_early_stopping_of_the_trainer_does_not_set_in(warm_runs: WarmRuns, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    script = """
        import torch
        from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
        arguments = TrainingArguments(
            "out", per_device_train_batch_size=4, num_train_epochs=4, eval_strategy="epoch", save_strategy="epoch",
            load_best_model_at_end=True, report_to=[],
        )
        trainer = Trainer(
            model=GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=100)), args=arguments,
            train_dataset=rows, eval_dataset=rows, callbacks=[EarlyStoppingCallback(1)],
        )
        trainer.train()
        print("steps", trainer.state.global_step)
        """
    (tmp_path / "stopping.py").write_text(textwrap.dedent(script))
    run = warm_runs.run(tmp_path / "stopping.py", cwd=tmp_path)
    assert run.code == 0, run.tail()
    assert lines_of(run, "steps ") == ["8"]
    assert [caveat for caveat in run.result["caveats"] if caveat.startswith("early stopping waits")]


def test_early_stopping_of_lightning_does_not_set_in(warm_runs: WarmRuns, tmp_path: Path) -> None:
    """Unknown losses fall a little from step to step, so `max` is the unlucky direction."""
    pytest.importorskip("lightning")
    script = """
        import lightning, torch
        from lightning.pytorch.callbacks import EarlyStopping
        from torch.utils.data import DataLoader, TensorDataset

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(64, 1)
            def training_step(self, batch, _):
                return self.layer(batch[0]).square().mean()
            def validation_step(self, batch, _):
                self.log("metric", self.layer(batch[0]).square().mean())
            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters())

        loader = DataLoader(TensorDataset(torch.randn(16, 64)), batch_size=8)
        trainer = lightning.Trainer(
            max_epochs=6, accelerator="gpu", devices=1, callbacks=[EarlyStopping("metric", patience=1, mode="max")],
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
        )
        trainer.fit(Model(), loader, loader)
        print("steps", trainer.global_step)
        """
    (tmp_path / "stopping.py").write_text(textwrap.dedent(script))
    run = warm_runs.run(tmp_path / "stopping.py", cwd=tmp_path, steps="all")
    assert run.code == 0, run.tail()
    assert lines_of(run, "steps ") == ["12"]
    assert len([caveat for caveat in run.result["caveats"] if caveat.startswith("early stopping waits")]) == 1
