"""The Hugging Face Trainer with bitsandbytes' 8-bit AdamW and gradient checkpointing."""

import tempfile

import torch
from common import report
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Sentences(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 64)
        return {"input_ids": tokens, "labels": tokens}


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=2,
            optim="adamw_bnb_8bit",
            gradient_checkpointing=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Sentences(),
    )
    trainer.train()
# The Trainer has embeddings keep theirs in 32 bits, and bitsandbytes those of small tensors.
quantised = {weight: state for weight, state in trainer.optimizer.state.items() if state["state1"].dtype == torch.uint8}
print(
    "state",
    sum(weight.numel() for weight in quantised),
    sum(value.nbytes for state in quantised.values() for value in state.values() if torch.is_tensor(value)),
)
report()
