"""Trains a graph network on the whole graph, as PyTorch Geometric's gcn.py does."""

import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected

torch.manual_seed(0)
count, features, classes = 2708, 1433, 7
edges = to_undirected(torch.randint(0, count, (2, 5000)))
data = Data(x=torch.rand(count, features), edge_index=edges, y=torch.randint(0, classes, (count,)))
for name, share in (("train_mask", 0.1), ("val_mask", 0.2), ("test_mask", 0.4)):
    data[name] = torch.rand(count) < share


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(features, 16, cached=True)
        self.conv2 = GCNConv(16, classes, cached=True)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.5, training=self.training)
        x = F.dropout(self.conv1(x, edge_index).relu(), p=0.5, training=self.training)
        return self.conv2(x, edge_index)


data = data.to("cuda")
model = GCN().to("cuda")
optimizer = torch.optim.Adam(
    [{"params": model.conv1.parameters(), "weight_decay": 5e-4}, {"params": model.conv2.parameters()}], lr=0.01
)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    best = model(data.x, data.edge_index).argmax(dim=-1)
    masks = (data.train_mask, data.val_mask, data.test_mask)
    return [int((best[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


best = 0.0
for epoch in range(1, 201):
    loss = train()
    accuracies = test()
    if accuracies[1] > best:
        best = accuracies[1]
    print(f"epoch {epoch}: loss {loss:.4f}, {accuracies}")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
