"""Segments volumes with a 3D U-Net, as MONAI's spleen tutorial does: sliding windows."""

import torch
from monai.data import CacheDataset, DataLoader, decollate_batch
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.layers import Norm
from monai.networks.nets import UNet
from monai.transforms import AsDiscrete, Compose, RandCropByPosNegLabeld, RandFlipd, ScaleIntensityd
from monai.utils import set_determinism

set_determinism(seed=0)
volumes = [
    {"image": torch.rand(1, 64, 64, 64), "label": (torch.rand(1, 64, 64, 64) > 0.7).float()} for _ in range(6)
]
crop = RandCropByPosNegLabeld(["image", "label"], label_key="label", spatial_size=(48, 48, 48), num_samples=2)
on_training = Compose([ScaleIntensityd("image"), crop, RandFlipd(["image", "label"], prob=0.5, spatial_axis=0)])
training = DataLoader(CacheDataset(volumes, on_training, progress=False), batch_size=2, shuffle=True)
validation = DataLoader(CacheDataset(volumes[:2], Compose([ScaleIntensityd("image")]), progress=False), batch_size=1)
device = torch.device("cuda:0")
model = UNet(
    spatial_dims=3, in_channels=1, out_channels=2, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2,
    norm=Norm.BATCH,
).to(device)  # fmt: skip
loss_of = DiceLoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
metric = DiceMetric(include_background=False, reduction="mean")
on_output, on_label = AsDiscrete(argmax=True, to_onehot=2), AsDiscrete(to_onehot=2)
best = -1.0
for epoch in range(4):
    model.train()
    for batch in training:
        images, labels = batch["image"].to(device), batch["label"].to(device)
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    if (epoch + 1) % 2 == 0:
        model.eval()
        with torch.no_grad():
            for batch in validation:
                images, labels = batch["image"].to(device), batch["label"].to(device)
                outputs = sliding_window_inference(images, (48, 48, 48), 4, model)
                outputs = [on_output(each) for each in decollate_batch(outputs)]
                metric(y_pred=outputs, y=[on_label(each) for each in decollate_batch(labels)])
            value = metric.aggregate().item()
            metric.reset()
            if value > best:
                best = value
                torch.save(model.state_dict(), "best_metric_model.pth")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
