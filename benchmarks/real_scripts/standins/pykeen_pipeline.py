"""Embeds a knowledge graph, as PyKEEN's README does: a pipeline that trains and evaluates by rank."""

import torch
from pykeen.pipeline import pipeline

result = pipeline(
    dataset="nations", model="TransE", model_kwargs={"embedding_dim": 256}, training_kwargs={"num_epochs": 5},
    random_seed=0, device="cuda",
)  # fmt: skip
print(result.get_metric("mrr"))
result.save_to_directory("out")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
