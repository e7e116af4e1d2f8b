from common import randn, train
from torch import nn

activations = [
    nn.GELU(), nn.ELU(), nn.SELU(), nn.CELU(), nn.Hardswish(), nn.Hardsigmoid(), nn.Mish(), nn.Softplus(),
    nn.Softsign(), nn.LogSigmoid(), nn.PReLU(), nn.RReLU(), nn.Hardtanh(), nn.Threshold(0.1, 0), nn.GLU(),
    nn.Softmax(-1), nn.Tanhshrink(), nn.Softshrink(), nn.ReLU6(), nn.Sigmoid(),
]  # fmt: skip
train(nn.Sequential(nn.Linear(256, 1024), *activations), lambda: randn(512, 256))
dropouts = [nn.Dropout2d(0.2), nn.Dropout(0.1), nn.AlphaDropout(0.1), nn.FeatureAlphaDropout(0.1)]
train(nn.Sequential(nn.Conv2d(3, 32, 3), *dropouts), lambda: randn(8, 3, 64, 64))
