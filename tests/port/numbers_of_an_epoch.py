"""Numbers of an epoch in the many ways in which scripts collect and show them; a rate of 0 keeps the parameters."""

# ruff: noqa

import collections
import ctypes
import math
import statistics
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
N = 96
data = TensorDataset(torch.randn(N, 4), torch.randint(0, 3, (N,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum, self.count = 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def accuracy(out, y):
    return (out.argmax(1) == y).float().mean().item()


for epoch in range(1):
    total = right = seen = batches = 0
    tot_t = torch.zeros(1)
    held = ctypes.c_double(0.0)
    tot_n, tot_f, tot_w = data.tensors[0].new_zeros(1), torch.FloatTensor([0.0]), model.weight.new_tensor(0.0)
    losses, sums, hits, flags, preds, trues, arr = [], [], [], [], [], [], np.array([])
    per = {"loss": 0.0, "right": 0}
    lists = {"loss": [], "right": []}
    dd = collections.defaultdict(float)
    ddl = collections.defaultdict(list)
    cnt = collections.Counter()
    meter, acc_meter = AverageMeter(), AverageMeter()
    window = collections.deque(maxlen=100)
    per_class = [0, 0, 0]
    class_right = np.zeros(3)
    conf = torch.zeros(3, 3)
    mean = 0.0
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n = x.size(0)
        pred = out.argmax(1)
        total += loss.item() * n
        right += (pred == y).sum().item()
        seen += n
        batches += 1
        tot_t += loss.detach() * n
        tot_n += loss.detach() * n
        held.value += loss.item() * n
        tot_f.add_(loss.detach() * n)
        tot_w += loss.detach() * n
        losses.append(loss.item())
        sums.append(loss.item() * n)
        hits.append((pred == y).sum().item())
        flags.extend((pred == y).tolist())
        preds.append(pred)
        trues.append(y)
        arr = np.append(arr, loss.item())
        per["loss"] += loss.item() * n
        per["right"] += (pred == y).sum().item()
        lists["loss"].append(loss.item())
        lists["right"].append((pred == y).sum().item())
        dd["loss"] += loss.item()
        ddl["right"].append(int((pred == y).sum()))
        cnt["right"] += int((pred == y).sum())
        cnt["seen"] += len(y)
        meter.update(loss.item(), n)
        acc_meter.update(accuracy(out, y), n)
        window.append(loss.item())
        mean += (loss.item() - mean) / (i + 1)
        for c in range(3):
            per_class[c] += int((y == c).sum())
            class_right[c] += int(((y == c) & (pred == y)).sum())
        for t, p in zip(y, pred):
            conf[t, p] += 1
    print(f"a1 {total / N:.5f}")
    print(f"a2 {total / len(data):.5f}")
    print(f"a3 {total / seen:.5f}")
    print(f"a4 {tot_t.item() / len(loader.dataset):.5f}")
    print(f"a6 {tot_n.item() / N:.5f} {float(tot_f) / len(data):.5f} {tot_w / seen:.5f} {held.value / N:.5f}")
    print(f"a5 {right} {right / len(data):.5f} {100.0 * right / seen:.3f}%")
    print(f"b1 {np.mean(losses):.5f} {sum(losses) / len(losses):.5f} {sum(losses) / len(loader):.5f}")
    print(f"b2 {sum(sums) / len(data):.5f} {sum(sums) / seen:.5f} {np.sum(sums) / N:.5f}")
    print(f"b3 {sum(hits)} {sum(hits) / len(data):.5f} {np.array(hits).sum() / seen:.5f}")
    print(f"b4 {np.mean(flags):.5f} {sum(flags)} {sum(flags) / len(flags):.5f} {len(flags)}")
    print(f"b5 {(torch.cat(preds) == torch.cat(trues)).float().mean():.5f}")
    print(f"b6 {(torch.cat(preds) == torch.cat(trues)).sum().item()} {len(torch.cat(preds))}")
    print(f"b7 {arr.mean():.5f} {arr.sum() / batches:.5f}")
    print(f"b8 {statistics.mean(losses):.5f} {statistics.fmean(losses):.5f} {torch.tensor(losses).mean().item():.5f}")
    print(f"c1 {per['loss'] / len(data):.5f} {per['right'] / seen:.5f} {per['right']}")
    print(f"c2 {np.mean(lists['loss']):.5f} {sum(lists['right']) / len(data):.5f} {sum(lists['right'])}")
    print(
        f"c3 {dd['loss'] / len(loader):.5f} {sum(ddl['right']) / N:.5f} {cnt['right'] / cnt['seen']:.5f} {cnt['right']}"
    )
    print(f"c4 {meter.avg:.5f} {acc_meter.avg:.5f} {meter.count}")
    print(f"d1 {sum(window) / len(window):.5f} {mean:.5f} {dd['loss'] / batches:.5f}")
    print(
        f"d2 {sum(right for right in hits) / len(data):.5f} {sum(h / N for h in hits):.5f} {sum(l * 8 for l in losses) / N:.5f}"
    )
    print(f"e1 {per_class} {[r / max(1, c) for r, c in zip(class_right, per_class)]}")
    print(f"e2 {conf.diag().sum() / conf.sum():.5f} {conf.sum().item()} {(conf.diag() / conf.sum(1)).mean():.5f}")
    avg = {k: v / len(data) for k, v in per.items()}
    print(f"f1 {avg['loss']:.5f} {avg['right']:.5f}")
    print("f2 " + " ".join(f"{k}={np.mean(v):.4f}" for k, v in lists.items()))
    print("f3 {:.5f} {:.5f}".format(total / len(data), right / len(data)))
    print("f4 %.5f %d/%d" % (total / len(data), right, len(data)))
    epoch_loss, epoch_acc = total / len(data), right / len(data)
    print("f5", round(epoch_loss, 5), round(epoch_acc, 5), math.exp(epoch_loss))
    mean_loss = sum(losses) / len(losses)
    print(f"f6 {mean_loss:.5f} {math.exp(mean_loss):.5f} {-math.log(mean_loss):.5f}")
    print(f"f7 {total / len(loader.sampler):.5f} {len(loader.sampler)} {len(loader.batch_sampler)}")
    total /= len(data)
    right = right / len(data)
    print(f"g1 {total:.5f} {right:.5f}")
