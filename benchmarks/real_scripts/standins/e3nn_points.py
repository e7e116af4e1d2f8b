"""Trains an equivariant network on points, as e3nn's tutorials do: tensor products, spherical harmonics."""

import torch
from e3nn import o3
from e3nn.nn.models.gate_points_2101 import Network
from torch_geometric.data import Batch, Data

torch.manual_seed(0)
draws = [torch.rand(8, 3) * 3 for _ in range(16)]
graphs = Batch.from_data_list([Data(pos=pos, x=torch.ones(8, 1), z=torch.ones(8, 1)) for pos in draws])
model = Network(
    irreps_in="1x0e", irreps_hidden="16x0e + 8x1o", irreps_out="1x0e", irreps_node_attr="1x0e",
    irreps_edge_attr=o3.Irreps.spherical_harmonics(2), layers=2, max_radius=2.0, number_of_basis=8, radial_layers=1,
    radial_neurons=64, num_neighbors=3.0, num_nodes=8.0,
).to("cuda")  # fmt: skip
batch = {"pos": graphs.pos.cuda(), "x": graphs.x.cuda(), "z": graphs.z.cuda(), "batch": graphs.batch.cuda()}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(20):
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step}: {loss.item():.5f}")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
