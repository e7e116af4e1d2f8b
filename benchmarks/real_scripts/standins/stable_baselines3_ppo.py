"""Learns by PPO, as stable-baselines3's README does: rollouts on the GPU, then epochs over their batches."""

import gymnasium
import torch
from stable_baselines3 import PPO

model = PPO("MlpPolicy", "CartPole-v1", verbose=1, device="cuda", n_steps=256, policy_kwargs={"net_arch": [256, 256]})
model.learn(total_timesteps=1024)
model.save("ppo_cartpole")
environment = gymnasium.make("CartPole-v1")
observation, _ = environment.reset(seed=0)
for _ in range(20):
    action, _ = model.predict(observation, deterministic=True)
    observation, _, ended, cut, _ = environment.step(action)
    if ended or cut:
        observation, _ = environment.reset()
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
