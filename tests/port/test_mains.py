"""Whatever runs the training - a framework's app, a command line, a decorator - counts as calling what trains."""

import pytest
from click.testing import CliRunner

from dlrun.cli.port import command
from dlrun.port import port

BODY = """    model = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        (model(x) - y).pow(2).mean().backward()
        opt.step()
"""
HEAD = "import torch\nfrom torch.utils.data import DataLoader\n"
GUARD = "\nif __name__ == '__main__':\n    "


@pytest.mark.parametrize(
    ("imports", "head", "tail"),
    [
        ("import tensorflow as tf", "def main(_):", GUARD + "tf.app.run()"),
        ("import tensorflow.compat.v1 as tf", "def main(_):", GUARD + "tf.app.run(main=main)"),
        ("from absl import app", "def main(argv):", GUARD + "app.run(main)"),
        ("import fire", "def train(lr=0.1):", GUARD + "fire.Fire(train)"),
        ("from fire import Fire", "def train(lr=0.1):", GUARD + "Fire()"),
        ("import click", "@click.command()\ndef main():", GUARD + "main()"),
        ("import click\n@click.group()\ndef cli(): pass", "@cli.command()\ndef train():", GUARD + "cli()"),
        ("import typer", "def main(lr: float = 0.1):", GUARD + "typer.run(main)"),
        ("import hydra", "@hydra.main(config_path='conf')\ndef main(cfg):", GUARD + "main()"),
        ("import sys", "def main():", GUARD + "sys.exit(main())"),
        ("import sys", "def train():", GUARD + "globals()[sys.argv[1]]()"),
        ("import sys", "def train():", "\n{'train': train}[sys.argv[1]]()"),
        ("import threading", "def train():", "\nthreading.Thread(target=train).start()"),
    ],
)
def test_a_function_that_something_runs_is_no_module_of_another_script(imports, head, tail):
    ported = port(f"{HEAD}{imports}\n{head}\n{BODY}{tail}\n")
    assert "dl.init()" in ported.text
    assert "dl.broadcast(model, opt)" in ported.text
    assert not [d for d in ported.doubts if d.step == "finish"]


def test_a_session_under_tf_app_run_is_ported(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("""import tensorflow.compat.v1 as tf
def main(_):
    x = tf.placeholder(tf.float32, [None, 3])
    loss = tf.reduce_mean(tf.layers.dense(x, 1))
    train_op = tf.train.AdamOptimizer(1e-3).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for i in range(len(rows) // 8):
            sess.run(train_op, feed_dict={x: rows[i * 8 : i * 8 + 8]})

if __name__ == "__main__":
    tf.app.run()
""")
    done = CliRunner().invoke(command, [str(script)])
    assert done.exit_code == 0, done.output
    assert "sess.run(dl.broadcast_variables())" in (tmp_path / "train_dist.py").read_text()


def test_the_methods_of_an_object_built_in_another_function_train_it():
    ported = port(f"""{HEAD}
class Trainer:
    def __init__(self, model, opt, loader):
        self.model, self.opt, self.loader = model, opt, loader
    def train(self):
        for x, y in self.loader:
            (self.model(x) - y).pow(2).mean().backward()
            self.opt.step()

def build():
    model = torch.nn.Linear(4, 1)
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=8))

def main():
    trainer = build()
    trainer.train()
main()
""")
    assert "dl.broadcast(self.model, self.opt)" in ported.text
    assert "dl.shard(DataLoader(data, batch_size=8))" in ported.text
    assert not [d for d in ported.doubts if d.step == "finish"]


TRAINS = """def train(model):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        (model(x) - y).pow(2).mean().backward()
        opt.step()
"""
FITS = """import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""


@pytest.mark.parametrize(
    "source",
    [
        f"{HEAD}{TRAINS}train(model){GUARD}print(model)\n",
        f"{HEAD}{TRAINS}{GUARD}train(model)\nelse:\n    train(other)\n{GUARD}print(model)\n",
        f"{FITS}model.fit(x, y){GUARD}print(model)\n",
    ],
    ids=["torch", "another guard", "keras"],
)
def test_the_ranks_meet_before_the_training_also_where_that_stands_outside_the_main_guard(source):
    text = port(source).text
    starts = [text.index(t) for t in ("\ntrain(model)", "    train(model)", "model.fit") if t in text]
    assert text.index("\ndl.init()") < min(starts)
    assert text.rstrip().splitlines()[-1].startswith("dl.finalize()")


def test_the_ranks_meet_under_the_main_guard_where_that_starts_all_training():
    assert "\n    dl.init()" in port(f"{HEAD}{TRAINS}{GUARD}train(model)\n").text
