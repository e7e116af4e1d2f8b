"""Trains with PyTorch-Ignite, as its MNIST example does: engines, evaluators after each epoch, a checkpoint handler."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping
from ignite.metrics import Accuracy, Loss
from torch import nn
from torchvision import datasets, transforms

model = nn.Sequential(
    nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
    nn.Linear(1024, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 10),
).to("cuda")  # fmt: skip
loaders = [
    torch.utils.data.DataLoader(
        datasets.MNIST("mnist", train=is_train, transform=transforms.ToTensor()), batch_size=size, shuffle=is_train
    )
    for is_train, size in ((True, 64), (False, 500))
]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.8)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), device="cuda")
evaluator = create_supervised_evaluator(
    model, metrics={"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())}, device="cuda"
)


@trainer.on(Events.ITERATION_COMPLETED(every=10))
def log_loss(engine):
    print(f"epoch {engine.state.epoch}, iteration {engine.state.iteration}: {engine.state.output:.2f}")


@trainer.on(Events.EPOCH_COMPLETED)
def log_metrics(engine):
    evaluator.run(loaders[1])
    print(f"epoch {engine.state.epoch}: {evaluator.state.metrics}")


saver = Checkpoint({"model": model}, DiskSaver("out", create_dir=True), n_saved=2)
evaluator.add_event_handler(Events.COMPLETED, saver)
stopper = EarlyStopping(3, score_function=lambda engine: -engine.state.metrics["loss"], trainer=trainer)
evaluator.add_event_handler(Events.COMPLETED, stopper)
trainer.run(loaders[0], max_epochs=5)
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
