"""Makes programs for the porter to meet: training scripts put together at random, and accidents to scripts."""

import random

HEADS = [
    "import torch",
    "import torch as T; torch = T",
    "from torch import *\nimport torch",
    "import torch, os, sys",
    "from __future__ import annotations\nimport torch",
    '"""Trains."""\nimport torch',
    "# -*- coding: utf-8 -*-\nimport torch",
    "try:\n    import torch\nexcept ImportError:\n    raise",
]
LOADERS = [
    "from torch.utils.data import DataLoader\nloader = DataLoader(data, batch_size=4, shuffle=True)",
    "import torch.utils.data as td\nloader = td.DataLoader(data, **options)",
    "loader = make_loader(data)",
    "loaders = {'train': torch.utils.data.DataLoader(data), 'test': None}\nloader = loaders['train']",
    "loader, other = [torch.utils.data.DataLoader(d) for d in (data, data)]",
    "loader = (lambda d: torch.utils.data.DataLoader(d))(data)",
    "loader = [(x, y)] * 9",
    "loader = iter(range(9))",
]
MODELS = [
    "model = torch.nn.Linear(2, 1)",
    "model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1)).to(device)",
    "class Net(torch.nn.Module):\n    def forward(self, x): return x\nmodel = Net()",
    "model = torch.nn.DataParallel(build())",
    "model = getattr(models, 'net')()",
    "model = (net := torch.nn.Linear(2, 1))",
    "model = build().cuda(0)",
    "model = torch.compile(torch.nn.LSTM(2, 1))",
]
OPTIMIZERS = [
    "opt = torch.optim.SGD(model.parameters(), lr=0.1)",
    "opt = torch.optim.Adam(model.parameters())",
    "opt = {'a': torch.optim.SGD, 'b': torch.optim.Adam}[kind](model.parameters(), **conf)",
    "opt = getattr(torch.optim, name)(model.parameters(), lr=args.lr)",
    "opt = torch.optim.AdamW([{'params': model.parameters(), 'lr': 1e-3}], 1e-2)",
    "def make(m, lr=0.1):\n    return torch.optim.SGD(m.parameters(), lr)\nopt = make(model)",
    "opt = torch.optim.LBFGS(model.parameters())",
    "opt, sched = torch.optim.SGD(model.parameters(), lr=1), None",
]
BODIES = [
    "loss = (model(x) - y).pow(2).mean()\nloss.backward()\nopt.step()",
    "opt.zero_grad(); (model(x) - y).sum().backward(); opt.step()",
    "loss = f(model(x), y)\nloss.backward()\nclip_grad_norm_(model.parameters(), 1)\nopt.step()\nsched.step()",
    "def closure():\n    loss = model(x).mean()\n    loss.backward()\n    return loss\nopt.step(closure)",
    "loss = model(x).mean() / 2\nloss.backward()\nif i % 2 == 0:\n    opt.step()\n    opt.zero_grad()",
    "loss = model(x).mean()\nloss.backward()\nwith torch.no_grad():\n    for p in model.parameters(): p -= p.grad",
    "scaler.scale(model(x).mean()).backward()\nscaler.unscale_(opt)\nscaler.step(opt)\nscaler.update()",
    "total = 0\ntotal += model(x).mean()\ntotal.backward(retain_graph=True)\nopt.step() if ok else None",
]
LOOPS = [
    "for x, y in loader:\n{}",
    "for i, (x, y) in enumerate(loader):\n{}",
    "while True:\n    x, y = next(it)\n{}\n    break",
    "for epoch in range(3):\n    for x, y in loader:\n        pass\n{}",
    "for i in range(0, len(x), 32):\n    x = x[i:i + 32]\n{}",
    "for x, *y in zip(loader, loader):\n{}\nelse:\n    done()",
    "for i in (t := range(9)):\n    x = torch.randn(4, 2)\n{}",
    "for batch in tqdm(loader):\n    match batch:\n        case (x, y):\n            pass\n{}",
]
TAILS = [
    "torch.save(model.state_dict(), 'a.pt')",
    "print('loss', loss.item())",
    "if loss.item() < best:\n    best = loss.item()",
    "for g in opt.param_groups:\n    g['lr'] = 0.1 * 0.5 ** i",
    "model.eval()\nacc = sum(1 for x, y in loader) / len(loader.dataset)",
    "with open('log.txt', 'w') as f: f.write(f'{loss:.{3}f} {loss.item()!r}')",
    "plt.savefig('x.png'); os.makedirs('out')",
    "sched = torch.optim.lr_scheduler.StepLR(opt, 100)",
    "del loss; x = y = None",
    "assert loss == loss, f'{loss}'",
    "async def later():\n    await x\n    yield x",
    "exec('x = 1')",
    "lambda *a, **k: (yield)",
    "x: int = 3; y = x if x else ...",
    "@property\ndef p(self, /, a, *, b=1): return {**a, 'b': [*b]}",
    "global_step = 0\nglobal_step += 1",
]


def indented(text: str, by: str) -> str:
    """Return ``text`` with each line moved in by ``by``."""
    return "".join(f"{by}{line}\n" if line.strip() else "\n" for line in text.splitlines())


def program(luck: random.Random) -> str:
    """Return a training script of random parts in a random frame: top level, function, method, main guard."""
    tails = "".join(luck.choice(TAILS) + "\n" for _ in range(luck.randint(0, 4)))
    inner = luck.choice(BODIES) + "\n" + (luck.choice(TAILS) if luck.random() < 0.5 else "")
    loop = luck.choice(LOOPS).replace("{}", indented(inner, "    ").rstrip())
    setup = [luck.choice(LOADERS), luck.choice(MODELS), luck.choice(OPTIMIZERS)]
    if luck.random() < 0.1:
        luck.shuffle(setup)
    if luck.random() < 0.1:
        setup.pop(luck.randrange(3))
    head, made, body = luck.choice(HEADS), "\n".join(setup), loop + "\n" + tails
    match luck.randrange(6):
        case 0:
            text = f"{head}\n{made}\n{body}"
        case 1:
            text = f"{head}\ndef train():\n{indented(made, '    ')}{indented(body, '    ')}\ntrain()\n"
        case 2:
            run = indented(f"def run(self, loader, model, opt):\n{indented(body, '    ')}", "    ")
            text = f"{head}\nclass Trainer:\n{run}\n{made}\nTrainer().run(loader, model, opt)\n"
        case 3:
            text = f"{head}\nif __name__ == '__main__':\n{indented(made, '    ')}{indented(body, '    ')}"
        case 4:
            main = indented(f"{made}\n{body}", "\t")
            text = f"{head}\ndef main(args):\n{main}\nif __name__ == '__main__': main(None)\n"
        case _:
            step = f"def step(model, opt, x, y):\n{indented(luck.choice(BODIES), '    ')}"
            loop = "for epoch in range(2):\n    for x, y in loader: step(model, opt, x, y)\n"
            text = f"{head}\n{step}\n{made}\n{loop}{tails}"
    return text if luck.random() < 0.8 else text.replace("\n", "\r\n")


def mutated(source: str, luck: random.Random) -> str:
    """Return ``source`` after a few random accidents."""
    lines = source.splitlines(keepends=True)
    for _ in range(luck.randint(1, 4)):
        if not lines:
            return ""
        i, j = luck.randrange(len(lines)), luck.randrange(len(lines))
        match luck.randrange(7):
            case 0:
                del lines[i : i + luck.randint(1, 3)]
            case 1:
                lines[i], lines[j] = lines[j], lines[i]
            case 2:
                lines.insert(i, lines[j])
            case 3:
                words = lines[i].replace("(", " ( ").split(" ")
                lines[i] = " ".join(words[: luck.randrange(len(words)) + 1]) + "\n"
            case 4:
                lines[i] = lines[i].replace(luck.choice("()[]:=,."), luck.choice(["", "(", ".x", "[0]", " if x else "]))
            case 5:
                lines[i] = lines[i].replace(
                    luck.choice(["model", "opt", "loader", "loss", "torch"]), luck.choice("abc")
                )
            case 6:
                lines[i] = "    " + lines[i]
    return "".join(lines)
