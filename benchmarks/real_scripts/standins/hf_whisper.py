"""Fine-tunes Whisper, as the Hugging Face audio course does: log-mel features, half precision, generation."""

import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

extractor = WhisperFeatureExtractor()
config = WhisperConfig(
    vocab_size=512, d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, pad_token_id=0, bos_token_id=2, eos_token_id=3,
    decoder_start_token_id=2,
)  # fmt: skip
model = WhisperForConditionalGeneration(config)
model.generation_config.max_length = 40


class Speech(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, at):
        draw = torch.Generator().manual_seed(at)
        sound = torch.randn(16000 * 3, generator=draw).numpy()
        features = extractor(sound, sampling_rate=16000).input_features[0]
        return {"input_features": features, "labels": torch.randint(4, 500, (12,), generator=draw).tolist()}


def collate(rows):
    batch = extractor.pad([{"input_features": row["input_features"]} for row in rows], return_tensors="pt")
    batch["labels"] = torch.tensor([row["labels"] for row in rows])
    return batch


arguments = Seq2SeqTrainingArguments(
    "out", per_device_train_batch_size=8, gradient_checkpointing=True, fp16=True, max_steps=10, report_to="none",
    predict_with_generate=True, generation_max_length=40, eval_strategy="steps", eval_steps=5,
)  # fmt: skip
trainer = Seq2SeqTrainer(
    model=model, args=arguments, train_dataset=Speech(), eval_dataset=Speech(), data_collator=collate,
    processing_class=extractor,
)  # fmt: skip
trainer.train()
