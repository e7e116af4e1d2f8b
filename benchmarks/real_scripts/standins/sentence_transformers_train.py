"""Trains a sentence encoder, as the documentation of sentence-transformers does: losses by pairs, an evaluator."""

from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

words = models.Transformer("bert", max_seq_length=128)
model = SentenceTransformer(modules=[words, models.Pooling(words.get_word_embedding_dimension())])
rows = load_dataset("csv", data_files={"train": "glue/train.csv", "validation": "glue/validation.csv"})
rows = rows.map(lambda row: {"label": float(row["label"])})
validation = rows["validation"]
evaluator = EmbeddingSimilarityEvaluator(validation["sentence1"], validation["sentence2"], validation["label"])
arguments = SentenceTransformerTrainingArguments(
    "out", num_train_epochs=2, per_device_train_batch_size=16, fp16=True, eval_strategy="epoch", report_to="none"
)
trainer = SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=rows["train"], eval_dataset=validation,
    loss=losses.CosineSimilarityLoss(model), evaluator=evaluator,
)  # fmt: skip
trainer.train()
model.save_pretrained("out/final")
print(model.encode(["a sentence", "another one"]).shape)
