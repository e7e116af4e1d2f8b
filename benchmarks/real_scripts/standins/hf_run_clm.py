"""Trains GPT-2 from its configuration on a text, as transformers' run_clm.py does: datasets, grouped texts, Trainer."""

import argparse
from itertools import chain

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--block", type=int, default=1024)
args = parser.parse_args()
training = TrainingArguments(
    "out", per_device_train_batch_size=args.batch_size, num_train_epochs=3, report_to="none", eval_strategy="epoch",
    per_device_eval_batch_size=args.batch_size,
)  # fmt: skip
set_seed(training.seed)
texts = load_dataset("text", data_files={"train": "wikitext/train.txt", "validation": "wikitext/valid.txt"})
tokenizer = AutoTokenizer.from_pretrained("tokenizer")
model = AutoModelForCausalLM.from_config(GPT2Config())
if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
    model.resize_token_embeddings(len(tokenizer))


def group(examples):
    joined = {key: list(chain(*examples[key])) for key in examples}
    total = len(joined["input_ids"]) // args.block * args.block
    parts = {key: [each[i : i + args.block] for i in range(0, total, args.block)] for key, each in joined.items()}
    parts["labels"] = parts["input_ids"].copy()
    return parts


with training.main_process_first(desc="tokenizing"):
    numbers = texts.map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=["text"])
    blocks = numbers.map(group, batched=True)
trainer = Trainer(
    model=model, args=training, train_dataset=blocks["train"], eval_dataset=blocks["validation"],
    processing_class=tokenizer, data_collator=default_data_collator,
)  # fmt: skip
result = trainer.train()
trainer.save_model()
trainer.log_metrics("train", result.metrics)
trainer.save_metrics("train", result.metrics)
trainer.save_state()
print(trainer.evaluate())
