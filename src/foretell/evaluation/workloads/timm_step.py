"""A model of timm as timm's benchmark measures it: a training step under autocast, or a forward in inference mode."""

import argparse

import timm
import torch
from torch import nn

NUM_PASSES = 3
DTYPES = {"amp": torch.float16, "amp_bf16": torch.bfloat16, "bf16": torch.bfloat16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--mode", choices=["train", "infer"], required=True)
    parser.add_argument("--precision", choices=sorted(DTYPES), default="amp")
    parser.add_argument("--layout", choices=["nchw", "nhwc"], default="nchw")
    parser.add_argument("--unfused-attention", action="store_true", help="as torch 1 did: softmax is an operator")
    parser.add_argument("--fast-norm", action="store_true", help="layer and group norms stay in half precision")
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    options = parser.parse_args()

    if options.unfused_attention:
        timm.layers.set_fused_attn(False)
    if options.fast_norm:
        timm.layers.set_fast_norm()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    layout = torch.channels_last if options.layout == "nhwc" else torch.contiguous_format
    is_pure = options.precision == "bf16"
    model = timm.create_model(options.model).to(
        "cuda", torch.bfloat16 if is_pure else torch.float32, memory_format=layout
    )
    size = timm.data.resolve_model_data_config(model)["input_size"][0], options.image_size, options.image_size
    images = torch.randn(options.batch_size, *size, device="cuda", dtype=torch.bfloat16 if is_pure else torch.float32)
    images = images.contiguous(memory_format=layout)

    def autocast() -> torch.autocast:
        return torch.autocast("cuda", dtype=DTYPES[options.precision], enabled=not is_pure)

    if options.mode == "infer":
        model.eval()
        if options.compile:
            model = torch.compile(model)
        with torch.inference_mode():
            for _ in range(NUM_PASSES):
                with autocast():
                    model(images)
                torch.cuda.synchronize()
        return
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
    criterion = nn.CrossEntropyLoss()
    target = torch.empty(options.batch_size, device="cuda", dtype=torch.long)
    for _ in range(NUM_PASSES):
        optimizer.zero_grad()
        with autocast():
            output = model(images)
            if isinstance(output, tuple):
                output = output[0]
            target.random_(model.num_classes)
            loss = criterion(output, target)
            loss.backward()
        optimizer.step()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
