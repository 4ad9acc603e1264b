import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
held = TensorDataset(torch.randn(53, 4), torch.randint(0, 3, (53,)))
test_loader = DataLoader(held, batch_size=8)  # 7 batches: uneven on 2 and 3 ranks, the last one short
few = DataLoader(TensorDataset(torch.randn(6, 4), torch.randint(0, 3, (6,))), batch_size=6)  # fewer than the ranks


def evaluate(model, batches):
    model.eval()
    loss, right, seen, n = 0.0, 0, 0, 0
    with torch.no_grad():
        for x, y in batches:
            out = model(x)
            loss += F.cross_entropy(out, y).item()
            right += (out.argmax(1) == y).sum().item()
            seen += y.size(0)
            n += 1
    return loss / len(batches), right / len(batches.dataset), right, seen, n


def predict(model):
    preds, labels, each = [], [], []
    model.eval()
    with torch.no_grad():
        for x, y in test_loader:
            out = model(x).softmax(1)
            preds.append(out)
            labels.extend(y.tolist())
            each.append(F.cross_entropy(out, y).item())
    preds = torch.cat(preds)
    return preds, labels, sum(each) / len(each), len(each)


def main():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    print("before", *evaluate(model, test_loader))
    best, patience = 0.0, 0
    for epoch in range(3):
        model.train()
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        loss, acc, right, seen, n = evaluate(model, test_loader)
        print(f"epoch {epoch} loss {loss:.5f} acc {acc:.5f} {right}/{seen} in {n} batches")
        if acc > best:
            best, patience = acc, 0
        else:
            patience += 1
            if patience > 1:
                break
    print(f"best {best:.5f}", *evaluate(model, few))
    preds, labels, mean, n = predict(model)
    print(preds.shape[0], len(labels), f"{mean:.5f}", n, labels, [round(p, 4) for p in preds[:, 0].tolist()])


main()
