"""A model and its data behind LightningCLI, as Lightning's documentation does: `fit --trainer.max_epochs 2`."""

import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torchvision import datasets, transforms


class Autoencoder(L.LightningModule):
    def __init__(self, width: int = 512):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 64))
        self.decoder = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 784))

    def shared_step(self, batch):
        x = batch[0].flatten(1)
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch, _):
        loss = self.shared_step(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self.shared_step(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Digits(L.LightningDataModule):
    def __init__(self, batch_size: int = 64):
        super().__init__()
        self.batch_size = batch_size

    def loader(self, is_train):
        dataset = datasets.MNIST("mnist", train=is_train, transform=transforms.ToTensor())
        return torch.utils.data.DataLoader(dataset, batch_size=self.batch_size, num_workers=1)

    def train_dataloader(self):
        return self.loader(True)

    def val_dataloader(self):
        return self.loader(False)


if __name__ == "__main__":
    LightningCLI(Autoencoder, Digits)
