"""Trains a module inside a scikit-learn pipeline and a grid search, as skorch's README does."""

import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn


class Net(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(20, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2),
            nn.Softmax(dim=-1),
        )  # fmt: skip

    def forward(self, x, **kwargs):
        return self.layers(x)


x, y = make_classification(1000, 20, n_informative=10, random_state=0)
x, y = x.astype("float32"), y.astype("int64")
net = NeuralNetClassifier(Net, max_epochs=10, lr=0.1, iterator_train__shuffle=True, device="cuda")
pipeline = Pipeline([("scale", StandardScaler()), ("net", net)])
pipeline.fit(x, y)
print(pipeline.predict_proba(x)[:3])
net.set_params(train_split=False, verbose=0)
search = GridSearchCV(net, {"lr": [0.01, 0.02], "module__width": [10, 512]}, refit=False, cv=3, scoring="accuracy")
search.fit(x, y)
print(search.best_score_, search.best_params_)
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
