"""Trains a U-Net in a LightningModule, as the example of segmentation-models-pytorch does: statistics of each step."""

import lightning as L
import segmentation_models_pytorch as smp
import torch
from torch.utils.data import DataLoader, TensorDataset


class PetModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = smp.create_model("FPN", encoder_name="resnet34", encoder_weights=None, in_channels=3, classes=1)
        self.loss_of = smp.losses.DiceLoss(smp.losses.BINARY_MODE, from_logits=True)
        self.collected = {"train": [], "valid": []}

    def shared_step(self, batch, stage):
        image, mask = batch
        logits = self.model(image)
        loss = self.loss_of(logits, mask)
        counts = smp.metrics.get_stats((logits.sigmoid() > 0.5).long(), mask.long(), mode="binary")
        self.collected[stage].append(counts)
        return loss

    def shared_end(self, stage):
        tp, fp, fn, tn = (torch.cat(each) for each in zip(*self.collected[stage], strict=True))
        self.log(f"{stage}_iou", smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro"), prog_bar=True)
        self.collected[stage].clear()

    def training_step(self, batch, _):
        return self.shared_step(batch, "train")

    def on_train_epoch_end(self):
        self.shared_end("train")

    def validation_step(self, batch, _):
        return self.shared_step(batch, "valid")

    def on_validation_epoch_end(self):
        self.shared_end("valid")

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-4)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def loader(count, shuffle):
    draw = torch.Generator().manual_seed(count)
    images, masks = torch.rand(count, 3, 128, 128, generator=draw), torch.rand(count, 1, 128, 128, generator=draw)
    return DataLoader(TensorDataset(images, (masks > 0.5).float()), batch_size=8, shuffle=shuffle)


trainer = L.Trainer(max_epochs=2, log_every_n_steps=1, accelerator="gpu", devices=1)
model = PetModel()
trainer.fit(model, train_dataloaders=loader(64, True), val_dataloaders=loader(16, False))
print(trainer.validate(model, dataloaders=loader(16, False), verbose=False))
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
