"""Fine-tunes a 4-bit Llama with LoRA, as PEFT's and bitsandbytes' guides do, with a paged 8-bit optimizer."""

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

quantization = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
)
model = AutoModelForCausalLM.from_pretrained("llama", quantization_config=quantization, device_map={"": 0})
model.config.use_cache = False
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)
model = get_peft_model(
    model, LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
)
model.print_trainable_parameters()
tokenizer = AutoTokenizer.from_pretrained("llama")
texts = load_dataset("text", data_files="wikitext/train.txt")["train"].select(range(200))
encoded = texts.map(lambda row: tokenizer(row["text"], truncation=True, max_length=128), remove_columns=["text"])
trainer = Trainer(
    model=model, train_dataset=encoded, data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    args=TrainingArguments(
        "out", per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=10, bf16=True,
        optim="paged_adamw_8bit", report_to="none",
    ),
)  # fmt: skip
trainer.train()
model.save_pretrained("adapter")
