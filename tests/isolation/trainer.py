"""Hugging Face's Trainer with a tokenizer and a new output folder: checkpoints are written by Rust, too."""

from __future__ import annotations

import os
import sys
import warnings

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, Trainer, TrainingArguments

warnings.simplefilter("ignore")
words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
model = BertForSequenceClassification(
    BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
)
data = [{"input_ids": torch.ones(8, dtype=torch.long), "labels": 0} for _ in range(32)]
arguments = TrainingArguments(sys.argv[1], save_steps=2, max_steps=4, report_to=[], per_device_train_batch_size=4)
trainer = Trainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)
trainer.train()
trainer.save_model()
print("saved", sorted(os.listdir(sys.argv[1])), flush=True)
