"""Ways of writing that are common in public scripts, each once: what is ported, and what must stay as it is."""

import pytest
from small import HEAD, LOOP, refused

from dlrun.port import port

KERAS = """from tensorflow import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.01), loss="mse")
model.fit(x, y, epochs=3)
"""
SESSION = """import tensorflow as tf
from tensorflow.keras import backend as K
config = tf.compat.v1.ConfigProto()
config.gpu_options.allow_growth = True
K.set_session(tf.compat.v1.Session(config=config))
"""


def test_a_name_that_takes_what_it_calls_is_followed_in_no_time():
    """Each of the calls may run what any of the others returned: n! ways, if they are followed one inside another."""
    turns = "".join(f"elif name == '{i}':\n    net = net({i})\n" for i in range(12))
    chosen = f"net = models[name]\nif name == '':\n    pass\n{turns}net = net.cuda()\nprint(net.size(1))\n"
    assert "dl.gradients(opt)" in port(HEAD + chosen + LOOP).text


def test_a_session_that_only_sets_up_the_gpu_leaves_the_training_to_fit():
    text = port(SESSION + KERAS).text
    assert "dl.distribute(model)" in text
    assert "broadcast_variables" not in text


def test_a_session_that_trains_beside_a_fit_is_a_session_still():
    trains = "sess = tf.compat.v1.Session()\nfor i in range(9):\n    sess.run(train_op, feed_dict={p: x})\n"
    assert "found no samples to share" in refused(SESSION + KERAS + trains).message


GRAPH = """opt = torch.optim.Adam(model.parameters())
data = Planetoid("cora")[0]
for epoch in range(200):
    out = model(data.x{edges})
    loss = (out[data.{mask}] - data.y).pow(2).mean()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(("edges", "mask"), [(", data.edge_index", "train"), ("", "train_mask"), ("", "train_idx")])
def test_one_whole_graph_behind_the_attributes_of_an_object_is_refused(edges, mask):
    error = refused(HEAD + GRAPH.format(edges=edges, mask=mask))
    assert "trains on one whole graph (data." in error.message


def test_a_function_or_an_object_that_hands_out_samples_is_no_array_of_them():
    loop = "for step in range(9):\n    (net({}) - 1).pow(2).mean().backward()\n    opt.step()\n"
    source = HEAD + "from there import net, data\nopt = torch.optim.SGD(model.parameters())\n"
    assert "found no samples to share" in refused(source + loop.format("data.get_batch(32)")).message
    assert "net = dl.shard(net)" not in port(source + "x = torch.ones(9, 2)\n" + loop.format("x")).text
