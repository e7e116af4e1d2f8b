"""The Hugging Face Trainer with bfloat16, gradient accumulation and an evaluation.

GELU is one operator here: of the powers in GPT-2's own, autocast makes float32 on a GPU and not on a CPU.
"""

import tempfile

import torch
from common import report, setup
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Sentences(Dataset):
    def __init__(self, size: int) -> None:
        self.tokens = torch.randint(128, (size, 24))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    device = setup(__doc__)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=128,
            n_positions=32,
            n_embd=32,
            n_layer=2,
            n_head=2,
            activation_function="gelu",
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=3,
            bf16=True,
            logging_steps=1,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=device.type == "cpu",
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=Sentences(24), eval_dataset=Sentences(8)).train()
    report()


if __name__ == "__main__":
    main()
