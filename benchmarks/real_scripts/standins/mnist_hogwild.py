"""Several processes train one shared model, as mnist_hogwild/main.py of pytorch/examples does."""

import torch
from torch import multiprocessing, nn, optim
from torch.nn import functional as F
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2)).view(-1, 320)
        return F.log_softmax(self.fc2(F.dropout(F.relu(self.fc1(x)), training=self.training)), dim=1)


def train(rank, model, dataset):
    torch.manual_seed(1 + rank)
    loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=1, pin_memory=True)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(1, 4):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(images.to("cuda")), labels.to("cuda"))
            loss.backward()
            optimizer.step()
        print(f"{rank}: epoch {epoch}, loss {loss.item():.4f}")


if __name__ == "__main__":
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset = datasets.MNIST("mnist", train=True, download=True, transform=transform)
    multiprocessing.set_start_method("spawn", force=True)
    model = Net().to("cuda")
    model.share_memory()
    processes = [multiprocessing.Process(target=train, args=(rank, model, dataset)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    test = datasets.MNIST("mnist", train=False, transform=transform)
    model.eval()
    with torch.no_grad():
        for images, labels in torch.utils.data.DataLoader(test, batch_size=1000):
            print(F.nll_loss(model(images.to("cuda")), labels.to("cuda")).item())
