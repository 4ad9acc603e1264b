"""Numbers of an epoch that decide what is shown, kept and saved; a rate of 0 keeps the parameters."""

# ruff: noqa

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)
best, best_acc, best_sum, patience = 9.0, 0, 1e9, 0
history, state = [], {"best": 9.0, "acc": 0.0}


def run():
    losses, hits = [], []
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item() * len(x))
        hits.append((out.argmax(1) == y).sum().item())
    return losses, hits


for epoch in range(2):
    losses, hits, total, right, kept = [], [], 0.0, 0, {"loss": [], "right": []}
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item() * len(x))
        hits.append((out.argmax(1) == y).sum().item())
        kept["right"].append((out.argmax(1) == y).sum().item())
        total += loss.item() * len(x)
        right += (out.argmax(1) == y).sum().item()
    epoch_loss = sum(losses) / len(data)
    if epoch_loss > 1.0:
        print("a above")
    if sum(hits) > 20:
        print("b above")
    if sum(hits) / len(data) > 0.25:
        print("c above")
    if sum(kept["right"]) / len(data) > 0.25:
        print("d above")
    if total > 100:
        print("e above")
    acc = 100.0 * right / len(data)
    if acc > best_acc:
        best_acc = acc
        torch.save(model.state_dict(), "best.pt")
        print(f"f best {best_acc:.3f}")
    if epoch_loss < best - 1e-4:
        best, patience = epoch_loss, 0
    else:
        patience += 1
    sched.step(epoch_loss)
    history.append(epoch_loss)
    state["best"] = min(state["best"], sum(losses) / len(data))
    state["acc"] = max(state["acc"], sum(hits) / len(data))
    print(f"g {best:.5f} {patience} {history[-1]:.5f} {state['best']:.5f} {state['acc']:.5f}")
    epoch_losses, epoch_hits = run()
    mean = np.sum(epoch_losses) / len(data)
    if mean > 1.0 and sum(epoch_hits) > 20:
        print(f"h {mean:.5f} {sum(epoch_hits)}")
    torch.save({"loss": sum(losses) / len(data), "right": sum(hits)}, f"at_{sum(hits)}.pt")
saved = torch.load("at_30.pt")
print(f"i {saved['loss']:.5f} {saved['right']}")
print(f"j {np.mean(history):.5f} {min(history):.5f} {sum(history) / 2:.5f}")
