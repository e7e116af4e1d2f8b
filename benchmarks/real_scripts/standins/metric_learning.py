"""Learns a metric with mined triplets, as the MNIST notebook of pytorch-metric-learning does."""

import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from torch import nn
from torchvision import datasets, transforms

model = nn.Sequential(
    nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.25), nn.Flatten(),
    nn.Linear(9216, 128),
).to("cuda")  # fmt: skip
transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
dataset = datasets.MNIST("mnist", train=True, transform=transform)
loader = torch.utils.data.DataLoader(dataset, batch_size=256, shuffle=True)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
distance = distances.CosineSimilarity()
loss_of = losses.TripletMarginLoss(margin=0.2, distance=distance, reducer=reducers.ThresholdReducer(low=0))
miner = miners.TripletMarginMiner(margin=0.2, distance=distance, type_of_triplets="semihard")
for epoch in range(2):
    model.train()
    for images, labels in loader:
        images, labels = images.to("cuda"), labels.to("cuda")
        optimizer.zero_grad()
        embeddings = model(images)
        found = miner(embeddings, labels)
        loss = loss_of(embeddings, labels, found)
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, {miner.num_triplets} triplets")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
