"""Trains a MobileNet, as references/classification/train.py of torchvision does: the evaluation counts its samples."""

import time

import torch
from torch import nn
from torchvision import datasets, models, transforms

torch.backends.cudnn.benchmark = True
device = torch.device("cuda")
normalize = transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
on_training = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor(), normalize])
on_test = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), normalize])
dataset = datasets.ImageFolder("image_folder/train", on_training)
test = datasets.ImageFolder("image_folder/val", on_test)
loader = torch.utils.data.DataLoader(
    dataset, batch_size=16, sampler=torch.utils.data.RandomSampler(dataset), num_workers=2, pin_memory=True
)
test_loader = torch.utils.data.DataLoader(
    test, batch_size=4, sampler=torch.utils.data.SequentialSampler(test), num_workers=2, pin_memory=True
)
model = models.mobilenet_v3_large(weights=None, num_classes=len(dataset.classes)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)


def evaluate():
    model.eval()
    correct = counted = 0
    with torch.inference_mode():
        for image, target in test_loader:
            image, target = image.to(device, non_blocking=True), target.to(device, non_blocking=True)
            output = model(image)
            criterion(output, target)
            correct += output.argmax(1).eq(target).sum().item()
            counted += image.shape[0]
    if len(test_loader.dataset) != counted and torch.distributed.get_rank() == 0:
        print(f"the dataset has {len(test_loader.dataset)} samples, but {counted} were evaluated")
    print(f"{100 * correct / counted:.1f} % correct")


for epoch in range(3):
    model.train()
    for image, target in loader:
        start = time.time()
        image, target = image.to(device), target.to(device)
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.4f}, {image.shape[0] / (time.time() - start):.0f} images/s")
    scheduler.step()
    evaluate()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "checkpoint.pth")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
