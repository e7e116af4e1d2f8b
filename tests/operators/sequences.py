import torch
from common import DEVICE, Lambda, randn, train
from torch import nn


def packed(lstm: nn.LSTM, x: torch.Tensor) -> torch.Tensor:
    lengths = torch.tensor([20] * 4 + [15] * 4 + [10] * 4 + [5] * 4)
    result, _ = lstm(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
    return nn.utils.rnn.pad_packed_sequence(result, batch_first=True)[0]


def step_by_step(gru: nn.GRU, cell: nn.GRUCell, x: torch.Tensor) -> torch.Tensor:
    state = None
    for each in gru(x)[0]:
        state = cell(each, state)
    return state


def two_states(cell: nn.LSTMCell, x: torch.Tensor) -> torch.Tensor:
    states = None
    for each in x:
        states = cell(each, states)
    return states[0]


train(Lambda(two_states, nn.LSTMCell(64, 512)), lambda: randn(20, 32, 64))
train(Lambda(packed, nn.LSTM(64, 128, 2, bidirectional=True, dropout=0.1, batch_first=True)), lambda: randn(16, 20, 64))
train(Lambda(step_by_step, nn.GRU(64, 256, 3), nn.GRUCell(256, 64)), lambda: randn(20, 32, 64))
weights = nn.MultiheadAttention(128, 8, dropout=0.1, batch_first=True)
train(Lambda(lambda attention, x: attention(x, x, x)[1], weights), lambda: randn(8, 64, 128))
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2)
train(encoder, lambda: randn(8, 64, 128))


def heads(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    attention = nn.functional.scaled_dot_product_attention
    with torch.autocast("cuda", dtype=torch.bfloat16):
        q, k, v = linear(x).view(8, 128, 3, 4, 16).permute(2, 0, 3, 1, 4)
        mask = torch.ones(128, 128, dtype=torch.bool, device=DEVICE).tril()
        return attention(q, k, v, attn_mask=mask) + attention(q, k, v, is_causal=True, dropout_p=0.1)


train(Lambda(heads, nn.Linear(64, 192)), lambda: randn(8, 128, 64))
keys = torch.zeros(0, 64, device=DEVICE)
for _ in range(100):
    keys = torch.cat([keys, randn(64, 64)])
    (keys @ keys.mT).softmax(-1)
