"""Fine-tunes BERT on pairs of sentences, as transformers' run_glue.py does: Trainer with a tokenizer and metrics."""

import argparse

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    Trainer,
    TrainingArguments,
)

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="bert")
args = parser.parse_args()
training = TrainingArguments(
    "out", per_device_train_batch_size=16, num_train_epochs=3, report_to="none", save_strategy="steps", save_steps=4
)
config = AutoConfig.from_pretrained(args.model, num_labels=2)
tokenizer = AutoTokenizer.from_pretrained(args.model, use_fast=True)
model = AutoModelForSequenceClassification.from_pretrained(args.model, config=config)
rows = load_dataset("csv", data_files={"train": "glue/train.csv", "validation": "glue/validation.csv"})
encoded = rows.map(lambda row: tokenizer(row["sentence1"], row["sentence2"], truncation=True), batched=True)


def metrics(p: EvalPrediction):
    scores = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
    return {"accuracy": float((np.argmax(scores, axis=1) == p.label_ids).mean())}


trainer = Trainer(
    model=model, args=training, train_dataset=encoded["train"], eval_dataset=encoded["validation"],
    compute_metrics=metrics, processing_class=tokenizer, data_collator=DataCollatorWithPadding(tokenizer),
)  # fmt: skip
result = trainer.train()
trainer.save_model()
trainer.save_metrics("train", result.metrics)
trainer.save_state()
found = trainer.evaluate()
trainer.log_metrics("eval", found)
labels = np.argmax(trainer.predict(encoded["validation"].remove_columns("label")).predictions, axis=1)
with open("out/predictions.txt", "w") as file:
    file.writelines(f"{number}\t{label}\n" for number, label in enumerate(labels))
trainer.create_model_card()
