"""Trains TabNet on a table, as pytorch-tabnet's README does: early stopping on a metric, then a zip file."""

import numpy as np
import torch
from pytorch_tabnet.tab_model import TabNetClassifier

draw = np.random.default_rng(0)
x = draw.normal(size=(4000, 32)).astype(np.float32)
y = (x[:, :4].sum(axis=1) > 0).astype(np.int64)
model = TabNetClassifier(
    device_name="cuda", optimizer_fn=torch.optim.Adam, optimizer_params={"lr": 2e-2},
    scheduler_params={"step_size": 10, "gamma": 0.9}, scheduler_fn=torch.optim.lr_scheduler.StepLR, mask_type="entmax",
)  # fmt: skip
model.fit(
    x[:3000], y[:3000], eval_set=[(x[:3000], y[:3000]), (x[3000:], y[3000:])], eval_name=["train", "valid"],
    eval_metric=["auc"], max_epochs=5, patience=3, batch_size=1024, virtual_batch_size=128, num_workers=0,
    drop_last=False,
)  # fmt: skip
print(model.predict_proba(x[:5]), model.feature_importances_[:4])
print(model.save_model("tabnet"))
