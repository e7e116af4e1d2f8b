"""Fine-tunes T5 and generates in every evaluation, as transformers' run_summarization.py does."""

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)

tokenizer = AutoTokenizer.from_pretrained("tokenizer")
config = T5Config(
    vocab_size=512, d_model=256, d_ff=512, num_layers=3, num_heads=4, d_kv=64, decoder_start_token_id=0, eos_token_id=3
)
model = T5ForConditionalGeneration(config)
rows = load_dataset("csv", data_files={"train": "glue/train.csv", "validation": "glue/validation.csv"})


def encode(row):
    inputs = tokenizer(row["sentence1"], max_length=128, truncation=True)
    inputs["labels"] = tokenizer(text_target=row["sentence2"], max_length=64, truncation=True)["input_ids"]
    return inputs


encoded = rows.map(encode, batched=True, remove_columns=rows["train"].column_names)


def metrics(prediction):
    tokens = np.where(prediction.predictions != -100, prediction.predictions, tokenizer.pad_token_id)
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return {"gen_len": float(np.mean([len(text.split()) for text in texts]))}


arguments = Seq2SeqTrainingArguments(
    "out", per_device_train_batch_size=16, per_device_eval_batch_size=16, num_train_epochs=2, report_to="none",
    predict_with_generate=True, generation_max_length=32, generation_num_beams=4, eval_strategy="steps", eval_steps=10,
    save_steps=10, load_best_model_at_end=True,
)  # fmt: skip
trainer = Seq2SeqTrainer(
    model=model, args=arguments, train_dataset=encoded["train"], eval_dataset=encoded["validation"],
    processing_class=tokenizer, data_collator=DataCollatorForSeq2Seq(tokenizer, model=model), compute_metrics=metrics,
    callbacks=[EarlyStoppingCallback(3)],
)  # fmt: skip
trainer.train()
print(trainer.evaluate(max_length=32, num_beams=4))
trainer.save_model()
