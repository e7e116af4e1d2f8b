"""Trains with DeepSpeed in one process, as its getting-started page does: ZeRO 2, bfloat16."""

import deepspeed
import torch
from torch import nn

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True), 4)
config = {
    "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}, "zero_optimization": {"stage": 2},
    "gradient_clipping": 1.0,
}  # fmt: skip
dataset = [torch.randn(128, 256) for _ in range(64)]
engine, _, loader, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=config, training_data=dataset
)
for epoch in range(2):
    for x in loader:
        x = x.to(engine.device, torch.bfloat16)
        loss = engine(x).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
    engine.save_checkpoint("out", tag=f"epoch-{epoch}")
