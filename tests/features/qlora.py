"""QLoRA as people write it: a 4-bit base model from a folder on disk, LoRA adapters, a paged 8-bit optimizer."""

import tempfile

import torch
from common import report
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


class Sentences(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 32)
        return {"input_ids": tokens, "labels": tokens}


def quantised_model() -> torch.nn.Module:
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(CONFIG).to(torch.bfloat16).save_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(
            folder,
            quantization_config=BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16,
            ),
            device_map={"": 0},
        )


model = quantised_model()
linear = [module for module in model.modules() if type(module).__name__ == "Linear4bit"]
print(
    "4bit",
    sum(module.in_features * module.out_features for module in linear),
    sum(module.weight.numel() * module.weight.element_size() for module in linear),
)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
model.print_trainable_parameters()
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            max_steps=3,
            bf16=True,
            optim="paged_adamw_8bit",
            gradient_checkpointing=True,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        ),
        train_dataset=Sentences(),
    )
    trainer.train()
print("optimizer", type(trainer.optimizer.optimizer).__name__)
trained = {name: each.numel() for name, each in model.named_parameters() if each.requires_grad}
print("trained", sum(trained.values()), sum(size for name, size in trained.items() if ".lora_" in name))
report()
