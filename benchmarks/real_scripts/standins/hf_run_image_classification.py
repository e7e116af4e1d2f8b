"""Trains a ViT in half precision, as transformers' run_image_classification.py does: images of a folder, Trainer."""

import numpy as np
import torch
from datasets import load_dataset
from torchvision.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
)
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, ViTImageProcessor

training = TrainingArguments(
    "out", fp16=True, per_device_train_batch_size=8, num_train_epochs=3, report_to="none", remove_unused_columns=False,
    eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
)  # fmt: skip
images = load_dataset("imagefolder", data_dir="image_folder")
processor = ViTImageProcessor()
model = ViTForImageClassification(ViTConfig(num_labels=2))
normalize = Normalize(mean=processor.image_mean, std=processor.image_std)
on_training = Compose([RandomResizedCrop(224), RandomHorizontalFlip(), ToTensor(), normalize])
on_validation = Compose([Resize(256), CenterCrop(224), ToTensor(), normalize])


def transformed(transform):
    return lambda rows: {**rows, "pixel_values": [transform(image.convert("RGB")) for image in rows["image"]]}


def collate(rows):
    pixels = torch.stack([row["pixel_values"] for row in rows])
    return {"pixel_values": pixels, "labels": torch.tensor([row["label"] for row in rows])}


images["train"].set_transform(transformed(on_training))
images["validation"].set_transform(transformed(on_validation))
trainer = Trainer(
    model=model, args=training, train_dataset=images["train"], eval_dataset=images["validation"], data_collator=collate,
    compute_metrics=lambda p: {"accuracy": float((np.argmax(p.predictions, axis=1) == p.label_ids).mean())},
    processing_class=processor,
)  # fmt: skip
trainer.train()
trainer.save_model()
trainer.save_metrics("eval", trainer.evaluate())
