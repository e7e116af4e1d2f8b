"""The training benchmark of timm 0.6.6, as its benchmark.py runs it with `--bench train --amp`: SGD with momentum, one
parameter at a time, gradients zeroed and not dropped, cudnn.benchmark on, no fused attention, no gradient
scaler."""

import argparse

import timm
import torch
from torch import nn

torch.backends.cudnn.benchmark = True
timm.layers.set_fused_attn(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    memory_format = torch.channels_last if options.channels_last else torch.contiguous_format
    model = timm.create_model(options.model).to("cuda", memory_format=memory_format).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
    loss = nn.CrossEntropyLoss().cuda()
    size = (options.batch_size, 3, options.image_size, options.image_size)
    images = torch.randn(size, device="cuda").contiguous(memory_format=memory_format)
    for _ in range(options.steps):
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(images)
        output = output[0] if isinstance(output, tuple) else output
        labels = torch.empty(options.batch_size, device="cuda", dtype=torch.long).random_(output.shape[1])
        loss(output, labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
