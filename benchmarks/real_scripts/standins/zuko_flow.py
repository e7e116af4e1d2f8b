"""Fits a neural spline flow to points, as zuko's README does: log-likelihood, then samples."""

import torch
import zuko

flow = zuko.flows.NSF(features=3, context=5, transforms=3, hidden_features=[128] * 3).cuda()
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
points = torch.utils.data.TensorDataset(torch.randn(4096, 3), torch.randn(4096, 5))
loader = torch.utils.data.DataLoader(points, batch_size=256, shuffle=True)
for epoch in range(8):
    losses = []
    for x, c in loader:
        loss = -flow(c.cuda()).log_prob(x.cuda()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    print(f"epoch {epoch}: {losses.mean().item():.4f} ± {losses.std().item():.4f}")
with torch.no_grad():
    print(flow(torch.randn(5).cuda()).sample((64,)).shape)
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
