"""torchvision's detectors, trained and evaluated: RoI align and non-maximum suppression are kernels of its own."""

import torch
from common import report
from torchvision.models import mobilenet_v3_small
from torchvision.models.detection import FasterRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign


def backbone() -> torch.nn.Module:
    features = mobilenet_v3_small().features
    features.out_channels = 576
    return features


def targets(num_boxes: int) -> dict[str, torch.Tensor]:
    corner = torch.randint(0, 60, (num_boxes, 2)).float()
    boxes = torch.cat([corner, corner + torch.randint(20, 60, (num_boxes, 2))], dim=1)
    return {"boxes": boxes.cuda(), "labels": torch.randint(1, 4, (num_boxes,)).cuda()}


def train_and_evaluate(model: torch.nn.Module) -> None:
    model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        images = [torch.rand(3, 128, 128, device="cuda") for _ in range(2)]
        losses = model(images, [targets(3), targets(5)])
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        found = model([torch.rand(3, 128, 128, device="cuda")])
    print(type(model).__name__, sorted(losses), "boxes", len(found[0]["boxes"]))


train_and_evaluate(
    FasterRCNN(
        backbone(),
        num_classes=4,
        rpn_anchor_generator=AnchorGenerator(sizes=((32, 64),), aspect_ratios=((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(featmap_names=["0"], output_size=7, sampling_ratio=2),
        min_size=128,
        max_size=128,
    )
)
train_and_evaluate(
    RetinaNet(
        backbone(),
        num_classes=4,
        anchor_generator=AnchorGenerator(sizes=((32, 64),), aspect_ratios=((1.0,),)),
        min_size=128,
        max_size=128,
    )
)
report()
