"""Liger's Triton kernels in a small Llama: the fused loss never holds the logits of the whole batch."""

import torch
from common import note_peaks, report
from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss, apply_liger_kernel_to_llama
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, LENGTH, BATCH, WIDTH = 8192, 256, 8, 128
LOGITS = BATCH * LENGTH * VOCABULARY * 2


def peak_of_a_step(step) -> int:
    step()
    note_peaks()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    note_peaks()
    return torch.cuda.max_memory_allocated() - before


def loss_alone() -> None:
    loss = LigerFusedLinearCrossEntropyLoss()
    weight = torch.randn(VOCABULARY, WIDTH, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    hidden = torch.randn(BATCH * LENGTH, WIDTH, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    labels = torch.randint(VOCABULARY, (BATCH * LENGTH,), device="cuda")
    print("fused loss", LOGITS, peak_of_a_step(lambda: loss(weight, hidden, labels).backward()))
    plain = torch.nn.functional.cross_entropy
    print("plain loss", LOGITS, peak_of_a_step(lambda: plain(hidden @ weight.T, labels).backward()))


def llama() -> None:
    apply_liger_kernel_to_llama()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("norm", type(model.model.norm).__name__, model.model.norm.forward.__module__)


loss_alone()
llama()
report()
