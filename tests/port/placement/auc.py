import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

def step(x, y):
    out = model(x)
    loss = F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss, out

import numpy as np
from sklearn.metrics import confusion_matrix, f1_score, roc_auc_score

for epoch in range(2):
    ps, ys, top = [], [], 0.0
    for x, y in loader:
        loss, out = step(x, y)
        ps.append(out.softmax(1).detach().numpy())
        ys.append(y.numpy())
        top = max(top, out.max().item())
    p, t = np.concatenate(ps), np.concatenate(ys)
    print(f"a {roc_auc_score(t, p, multi_class='ovr'):.5f} {f1_score(t, p.argmax(1), average='macro'):.5f} {np.median(p[:, 0]):.5f} {top:.5f}")
    print("b", confusion_matrix(t, p.argmax(1)).tolist(), p.shape)
