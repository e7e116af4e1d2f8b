"""What scripts do where flash-attn may be installed or not: ask, and fall back to PyTorch's own attention."""

import torch
from common import report
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import is_flash_attn_2_available

try:
    from flash_attn import flash_attn_func  # noqa: F401
except ImportError as error:
    print("import", error)

attention = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
config = LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    attn_implementation=attention,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
print("attention", model.config._attn_implementation)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    tokens = torch.randint(128, (2, 32), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
report()
