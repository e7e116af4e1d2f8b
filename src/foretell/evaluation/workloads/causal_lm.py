"""A causal language model of transformers, built from its configuration with random weights: fp32, dropout on."""

import argparse
import random

import torch
import transformers
from transformers import GPT2Config, GPTNeoConfig, LlamaConfig, OPTConfig, Qwen2Config

CONFIGS = {
    "openai-community/gpt2": lambda: GPT2Config(),
    "distilbert/distilgpt2": lambda: GPT2Config(n_layer=6),
    "cerebras/Cerebras-GPT-111M": lambda: GPT2Config(
        n_embd=768, n_layer=10, n_head=12, n_inner=3072, n_positions=2048, activation_function="gelu",
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    ),
    "EleutherAI/gpt-neo-125M": lambda: GPTNeoConfig(
        hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]], window_size=256
    ),
    "facebook/opt-125m": lambda: OPTConfig(),
    "facebook/opt-350m": lambda: OPTConfig(
        hidden_size=1024, num_hidden_layers=24, ffn_dim=4096, num_attention_heads=16, word_embed_proj_dim=512,
        do_layer_norm_before=False,
    ),
    "Qwen/Qwen3-4B": lambda: transformers.Qwen3Config(
        hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=9728, vocab_size=151936, tie_word_embeddings=True,
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": lambda: Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960,
        vocab_size=151936, tie_word_embeddings=False,
    ),
    "meta-llama/Llama-3.2-3B-Instruct": lambda: LlamaConfig(
        hidden_size=3072, num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8, intermediate_size=8192,
        vocab_size=128256, tie_word_embeddings=True, head_dim=128,
    ),
}  # fmt: skip

ZERO_GRAD = "when: 0 before the batch, 1 before the backward, 2 after the step"


def make_optimizer(name: str, parameters: object) -> torch.optim.Optimizer:
    if name == "Adafactor":
        return transformers.Adafactor(parameters, lr=1e-3, relative_step=False)
    return getattr(torch.optim, name)(parameters, lr=1e-3)


def batch_length(batch_size: int, generator: random.Random, longest: int) -> int:
    """Of a batch of lines of WikiText-2, padded to its longest and cut. Of its 36,718 lines for training about a
    third are empty and a sixth are headings; its 2.39 million tokens (of GPT-2) make 134 for each of the other lines.
    That the logarithm of their length has a standard deviation of 1 is an assumption; one line in seven is cut at 128
    then."""

    def line() -> int:
        kind = generator.random()
        return 2 if kind < 0.36 else 8 if kind < 0.53 else round(generator.lognormvariate(4.4, 1.0))

    return min(longest, max(line() for _ in range(batch_size)))


def batch_lengths(options: argparse.Namespace) -> list[int]:
    """Of all steps. Drawn ones are drawn again until one of them is below the limit: the others are known."""
    lengths = [options.length] * options.steps
    generator = random.Random(options.lines)
    while options.lines is not None and min(lengths) == options.length:
        lengths = [batch_length(options.batch_size, generator, options.length) for _ in lengths]
    return lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(CONFIGS), required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--lines", metavar="SEED", type=int, help="batches as long as drawn lines, one below --length")
    parser.add_argument("--zero-grad", type=int, choices=[0, 1, 2], default=0, help=ZERO_GRAD)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()

    torch.cuda.set_per_process_memory_fraction(1.0)
    config = CONFIGS[options.model]()
    model = transformers.AutoModelForCausalLM.from_config(config).to("cuda")
    model.train()
    optimizer = make_optimizer(options.optimizer, model.parameters())
    for length in batch_lengths(options):
        shape = (options.batch_size, length)
        batch = {  # the old one is gone before the new one is moved, as in a loop over a DataLoader
            "input_ids": torch.randint(0, config.vocab_size, shape),
            "attention_mask": torch.ones(shape, dtype=torch.int64),
            "labels": torch.randint(0, config.vocab_size, shape),
        }
        if options.zero_grad == 0:
            optimizer.zero_grad()
        batch = {name: value.to("cuda") for name, value in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        if options.zero_grad == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.zero_grad == 2:
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
