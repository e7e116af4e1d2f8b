import torch
import torch.nn.functional as F
from common import DEVICE, one_by_one, randn

x = torch.rand(1024, 512, device=DEVICE, requires_grad=True)
target, classes = torch.rand(1024, 512, device=DEVICE), torch.randint(0, 512, (1024,), device=DEVICE)
images = randn(8, 21, 64, 64, requires_grad=True)
labels = torch.randint(0, 21, (8, 64, 64), device=DEVICE)
lengths = torch.full((16,), 64), torch.full((16,), 20)
words = torch.randint(1, 512, (16, 20), device=DEVICE)
one_by_one(
    x,
    lambda: F.mse_loss(x, target),
    lambda: F.l1_loss(x, target, reduction="sum"),
    lambda: F.smooth_l1_loss(x, target),
    lambda: F.huber_loss(x, target),
    lambda: F.binary_cross_entropy(x, target),
    lambda: F.binary_cross_entropy_with_logits(x, target, pos_weight=target),
    lambda: F.kl_div(x.log_softmax(-1), target.softmax(-1), reduction="batchmean"),
    lambda: F.cosine_embedding_loss(x, target, torch.ones(1024, device=DEVICE)),
    lambda: F.triplet_margin_loss(x, target, target * 2),
    lambda: F.multi_margin_loss(x, classes),
    lambda: F.multilabel_soft_margin_loss(x, target),
    lambda: F.poisson_nll_loss(x, target),
    lambda: F.soft_margin_loss(x, target),
    lambda: F.cross_entropy(x, classes),
    lambda: F.cross_entropy(x, target.softmax(1)),
    lambda: F.cross_entropy(x, classes, label_smoothing=0.1),
    lambda: F.cross_entropy(images, labels, ignore_index=5, label_smoothing=0.1),
    lambda: F.ctc_loss(x.view(64, 16, 512).log_softmax(2), words, *lengths),
    lambda: F.logsigmoid(x),
)
