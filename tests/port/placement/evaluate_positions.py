import torch

torch.manual_seed(0)
x = torch.randn(128, 4)
y = x.sum(1)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.0)


def run(rows, optimizer=None, size=4):
    seen, total, targets, scores = 0, [], [], []
    steps = (len(rows) + (size - 1) * (optimizer is None)) // size
    for at in range(steps):
        pick = rows[at * size : (at + 1) * size]
        targets += [y[i].item() for i in pick]
        out = net(x[pick])[:, 0]
        loss = ((out - y[pick]) ** 2).mean()
        scores.append(out.detach())
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total.append(loss.item() * len(pick))
        seen += len(pick)
    if optimizer is None:
        assert seen == len(rows)
    products = [a * b for a, b in zip(targets, torch.cat(scores).tolist(), strict=True)]
    print(f"{seen} {sum(total) / seen:.4f} {sum(products):.4f} {products[0]:.4f} {products[-1]:.4f}")


train, held = list(range(120)), list(range(75, 128))
for epoch in range(2):
    run(train, opt)
    net.eval()
    run(held)
