import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
sets = {"train": TensorDataset(torch.randn(240, 4), torch.randint(0, 3, (240,))), "val": TensorDataset(torch.randn(44, 4), torch.randint(0, 3, (44,)))}
dataloaders = {k: DataLoader(sets[k], batch_size=8, shuffle=k == "train") for k in ("train", "val")}
dataset_sizes = {k: len(sets[k]) for k in sets}
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


def train_model(model, epochs):
    best = 0.0
    for epoch in range(epochs):
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_loss, running_corrects = 0.0, 0
            for inputs, labels in dataloaders[phase]:
                opt.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = F.cross_entropy(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        opt.step()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data)
            epoch_loss = running_loss / dataset_sizes[phase]
            epoch_acc = running_corrects.double() / dataset_sizes[phase]
            print(f"{phase} Loss: {epoch_loss:.4f} Acc: {epoch_acc:.4f}")
            if phase == "val" and epoch_acc > best:
                best = epoch_acc
    print(f"best {best:.4f}")


train_model(model, 2)
