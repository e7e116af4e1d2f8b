"""Trains a Llama from its configuration with the Hugging Face Trainer on synthetic text: bf16, evaluation, checkpoints.

python train_trainer.py --hidden-size 2048 --layers 16 --batch-size 4 --seq-len 1024 --gradient-checkpointing
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class SyntheticText(Dataset):
    """Stands in for a tokenised corpus: a row depends on its index alone."""

    def __init__(self, length: int, seq_len: int, vocabulary: int) -> None:
        self.length, self.seq_len, self.vocabulary = length, seq_len, vocabulary

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(self.vocabulary, (self.seq_len,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def main() -> None:
    args = parse_args()
    set_seed(args.seed)
    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden_size,
        intermediate_size=args.hidden_size * 11 // 4,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=max(args.heads // 4, 1),
        max_position_embeddings=args.seq_len,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    training = TrainingArguments(
        output_dir=args.output,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulate,
        gradient_checkpointing=args.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        bf16=True,
        max_steps=args.steps,
        learning_rate=3e-4,
        lr_scheduler_type="cosine",
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=args.steps,
        save_strategy="steps",
        save_steps=args.steps,
        dataloader_num_workers=args.workers,
        report_to="none",
        use_cpu=args.device == "cpu",
        seed=args.seed,
    )
    rows = args.steps * args.accumulate * args.batch_size
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=SyntheticText(rows, args.seq_len, args.vocabulary),
        eval_dataset=SyntheticText(2 * args.batch_size, args.seq_len, args.vocabulary),
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="checkpoints")
    return parser.parse_args()


if __name__ == "__main__":
    main()
