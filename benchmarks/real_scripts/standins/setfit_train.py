"""Few-shot classification of texts, as SetFit's README does: an encoder trained on pairs, then a head."""

from datasets import Dataset
from sentence_transformers import SentenceTransformer, models
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score

words = models.Transformer("bert", max_seq_length=64)
encoder = SentenceTransformer(modules=[words, models.Pooling(words.get_word_embedding_dimension())])
model = SetFitModel(model_body=encoder, model_head=LogisticRegression())
texts = [f"{word} {other}" for word in ("good", "bad") for other in ("film", "book", "song", "play", "day", "meal")]
rows = Dataset.from_dict({"text": texts, "label": [0] * 6 + [1] * 6})
trainer = Trainer(
    model=model, args=TrainingArguments(batch_size=8, num_epochs=1, output_dir="out", report_to="none"),
    train_dataset=rows, eval_dataset=rows, metric=accuracy_score,
)  # fmt: skip
trainer.train()
print(trainer.evaluate())
print(model.predict(["good film", "bad book"]))
