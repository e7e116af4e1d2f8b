"""Learns by actor and critic in a small game of its own, on the CPU, as reinforcement_learning/actor_critic.py of
pytorch/examples does."""

import random

import torch
from torch import nn, optim
from torch.distributions import Categorical
from torch.nn import functional as F


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine, self.action, self.value = nn.Linear(4, 128), nn.Linear(128, 2), nn.Linear(128, 1)

    def forward(self, state):
        state = F.relu(self.affine(state))
        return F.softmax(self.action(state), dim=-1), self.value(state)


random.seed(543)
torch.manual_seed(543)
model = Policy()
optimizer = optim.Adam(model.parameters(), lr=3e-2)
for episode in range(30):
    steps, state = [], [random.random() for _ in range(4)]
    for _ in range(50):
        chances, value = model(torch.tensor(state))
        drawn = Categorical(chances)
        action = drawn.sample()
        state = [x + 0.1 * (action.item() - 0.5) * random.random() for x in state]
        steps.append((drawn.log_prob(action), value, 1.0 - abs(state[0])))
        if abs(state[0]) > 1:
            break
    returns, future = [], 0.0
    for _, _, reward in reversed(steps):
        future = reward + 0.99 * future
        returns.insert(0, future)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    actor = [-chance * (wanted - value.item()) for (chance, value, _), wanted in zip(steps, returns, strict=True)]
    critic = [F.smooth_l1_loss(value, wanted.view(1)) for (_, value, _), wanted in zip(steps, returns, strict=True)]
    optimizer.zero_grad()
    loss = torch.stack(actor).sum() + torch.stack(critic).sum()
    loss.backward()
    optimizer.step()
    print(f"episode {episode}: {len(steps)} steps")
