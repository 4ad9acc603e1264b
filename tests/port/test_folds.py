"""Full batches of samples picked by their places: the places are sharded, what they pick from stays whole."""

import pytest
import torch
from running import ran
from small import refused

from dlrun.port import port

FOLDS = """import numpy as np
import torch
from sklearn.model_selection import KFold

rng = np.random.RandomState(0)
X = torch.tensor(rng.randn(41, 5), dtype=torch.float32)
y = torch.tensor(rng.randint(0, 3, 41))
trained, right = [], 0
for {places}, test_idx in KFold(3, shuffle=True, random_state=0).split(X):
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(20):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(X[{places}]), y[{places}])
        loss.backward()
        opt.step()
    right += (model(X[test_idx]).argmax(1) == y[test_idx]).sum().item()
    trained.append(model.state_dict())
print("right", right)
torch.save(trained, "last.pt")
"""


@pytest.mark.parametrize("places", ["train_idx", "fold"])
def test_folds_on_n_ranks_leave_the_serial_parameters(places, tmp_path):
    source = FOLDS.format(places=places)
    text = port(source).text
    assert f'    {places} = dl.shard(dl.broadcast({places}), batch="global")  # this rank\'s samples\n' in text
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "train_dist.py").write_text(text)
    said, serial = ran(tmp_path / "train.py", tmp_path / "one")
    shown, shared = ran(tmp_path / "train_dist.py", tmp_path / "run", 2)
    assert shown == said
    for one, other in zip(serial, shared, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=2e-4, atol=2e-6)


def test_a_mask_picks_other_samples_of_a_share():
    source = FOLDS.format(places="fold").replace("model(X[fold]), y[fold]", "model(X[kept]), y[kept]")
    message = refused(source.replace("    for step", "    kept = X[:, 0] > 0\n    for step")).message
    assert "each step takes a part, X[kept], out of X" in message


def test_places_of_nodes_in_what_a_model_computes_are_a_graphs():
    source = FOLDS.format(places="train_idx").replace("model(X[train_idx])", "model(X)[train_idx]")
    assert "trains on one whole graph (train_idx)" in refused(source).message
