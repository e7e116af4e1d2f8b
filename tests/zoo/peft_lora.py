"""PEFT: LoRA adapters on a small Llama, then weight-decomposed ones (DoRA)."""

import torch
from common import report, setup, token_batches
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def train(device: torch.device, *, use_dora: bool) -> None:
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    adapters = LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_dora=use_dora, task_type="CAUSAL_LM"
    )
    model = get_peft_model(LlamaForCausalLM(config), adapters).to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert all(".lora_" in name for name, parameter in model.named_parameters() if parameter.requires_grad)
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for tokens, _ in token_batches(device):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"{sum(parameter.numel() for parameter in trained)} of {model.num_parameters()} parameters trained")


def main() -> None:
    device = setup(__doc__)
    train(device, use_dora=False)
    train(device, use_dora=True)
    report()


if __name__ == "__main__":
    main()
