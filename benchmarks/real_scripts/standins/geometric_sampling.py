"""Trains GraphSAGE and pooled graphs in batches, as PyTorch Geometric's examples of mini-batches do."""

import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, SAGEConv, TopKPooling, global_mean_pool

torch.manual_seed(0)
graphs = [
    Data(x=torch.rand(n, 16), edge_index=torch.randint(0, n, (2, 4 * n)), y=torch.randint(0, 3, (1,)))
    for n in torch.randint(20, 60, (400,)).tolist()
]
loader = DataLoader(graphs, batch_size=32, shuffle=True)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(16, 128), GATConv(128, 32, heads=4)
        self.pool, self.out = TopKPooling(128, ratio=0.8), torch.nn.Linear(128, 3)

    def forward(self, x, edge_index, batch):
        x = F.relu(self.conv1(x, edge_index))
        x, edge_index, _, batch, _, _ = self.pool(x, edge_index, None, batch)
        return self.out(global_mean_pool(F.elu(self.conv2(x, edge_index)), batch))


model = Net().to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(1, 6):
    total = 0.0
    for batch in loader:
        batch = batch.to("cuda")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y)
        loss.backward()
        total += batch.num_graphs * loss.item()
        optimizer.step()
    print(f"epoch {epoch}: {total / len(graphs):.4f}")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
