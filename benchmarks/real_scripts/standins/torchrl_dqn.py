"""Learns by DQN with a replay buffer on the GPU, as TorchRL's tutorial does: a collector, target network updates."""

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueModule
from torchrl.objectives import DQNLoss, SoftUpdate

environment = TransformedEnv(GymEnv("CartPole-v1", device="cuda"), StepCounter())
environment.set_seed(0)
net = TensorDictModule(
    MLP(in_features=4, out_features=2, num_cells=[256, 256], device="cuda"), ["observation"], ["action_value"]
)
policy = TensorDictSequential(net, QValueModule(spec=environment.action_spec))
explore = EGreedyModule(environment.action_spec, annealing_num_steps=1000, eps_init=0.5, device="cuda")
collector = Collector(
    environment, TensorDictSequential(policy, explore), frames_per_batch=100, total_frames=1000, init_random_frames=200,
    device="cuda",
)  # fmt: skip
buffer = ReplayBuffer(storage=LazyTensorStorage(10_000, device="cuda"))
loss_of = DQNLoss(policy, action_space=environment.action_spec, delay_value=True).to("cuda")
optimizer = torch.optim.Adam(loss_of.parameters(), lr=1e-3)
target = SoftUpdate(loss_of, eps=0.99)
for number, data in enumerate(collector):
    buffer.extend(data.reshape(-1))
    for _ in range(4):
        loss = loss_of(buffer.sample(128))["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        explore.step(data.numel())
        target.step()
    print(f"{number}: loss {loss.item():.4f}, longest {int(data['next', 'step_count'].max())}")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
