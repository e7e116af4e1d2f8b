"""Trains GPT-2 with accelerate, as transformers' run_clm_no_trainer.py does: checkpoints of the whole state."""

import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, default_data_collator, get_scheduler

accelerator = Accelerator(gradient_accumulation_steps=2)
set_seed(7)
texts = load_dataset("text", data_files={"train": "wikitext/train.txt", "validation": "wikitext/valid.txt"})
tokenizer = AutoTokenizer.from_pretrained("tokenizer")
model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=1024))


def encode(rows):
    encoded = tokenizer(rows["text"], padding="max_length", max_length=128, truncation=True)
    return {**encoded, "labels": encoded["input_ids"]}


with accelerator.main_process_first():
    numbers = texts.map(encode, batched=True, remove_columns=["text"])
training = DataLoader(numbers["train"], shuffle=True, collate_fn=default_data_collator, batch_size=8)
validation = DataLoader(numbers["validation"], collate_fn=default_data_collator, batch_size=8)
groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) == is_large], "weight_decay": 0.1 * is_large}
          for is_large in (True, False)]  # fmt: skip
optimizer = torch.optim.AdamW(groups, lr=5e-5)
scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=100)
model, optimizer, training, validation, scheduler = accelerator.prepare(
    model, optimizer, training, validation, scheduler
)
for epoch in range(3):
    model.train()
    for batch in training:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    losses = []
    for batch in validation:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(**batch).loss.repeat(8)))
    mean = torch.mean(torch.cat(losses))
    try:
        perplexity = math.exp(mean)
    except OverflowError:
        perplexity = float("inf")
    accelerator.print(f"epoch {epoch}: perplexity {perplexity}")
    accelerator.save_state(f"out/epoch_{epoch}")
accelerator.wait_for_everyone()
accelerator.unwrap_model(model).save_pretrained("out", save_function=accelerator.save)
tokenizer.save_pretrained("out")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
