"""``--from horovod`` and ``--from ddl``: the steps that their documentation names come out as dl_comm's."""

import pytest
from click.testing import CliRunner
from projects import lay
from running import ran

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port import Options, port

HOROVOD = Options(origin="horovod")
DDL = Options(origin="ddl")

TORCH = """
import torch
import horovod.torch as hvd
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

hvd.init()
torch.manual_seed(1)
x = torch.arange(64.0).reshape(32, 2) / 64
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
compression = hvd.Compression.fp16 if hvd.size() > 99 else hvd.Compression.none
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression,
                                     op=hvd.Average)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        loss = (model(a) - b).pow(2).mean()
        loss.backward()
        optimizer.step()
    loss = hvd.allreduce(loss.detach(), name="loss")
    seen = hvd.allreduce(torch.tensor(len(sampler)), average=False, name="seen")
    if hvd.rank() == 0:
        print("epoch", epoch, "seen", seen.item(), "of", hvd.size() * hvd.local_size() // hvd.local_size())
if hvd.rank() == 0:
    torch.save(model.state_dict(), "last.pt")
"""


def test_each_call_of_horovod_becomes_dl_comms_and_the_rest_stays():
    text = port(TORCH, HOROVOD).text
    assert "hvd" not in text
    assert "horovod" not in text
    for line in (
        "import dl_comm.torch as dl  #",
        "dl.init(alike=False)",
        "num_replicas=dl.get_nranks(), rank=dl.get_rank())",
        "lr=0.01 * dl.get_nranks())",
        "optimizer = dl.DistributedOptimizer(optimizer)",
        "dl.broadcast(model)",
        "dl.broadcast(optimizer)",
        "loss = dl.average(loss.detach())",
        "seen = dl.total(torch.tensor(len(sampler)))",
        "if dl.get_rank() == 0:",
        "dl.finalize()  # leave together",
    ):
        assert line in text, line
    assert "dl.shard" not in text
    assert "its shards, rates and steps stay" in port(TORCH, HOROVOD).report()


def test_a_translated_script_trains_on_ranks(tmp_path):
    script = lay(tmp_path, {"train.py": port(TORCH, HOROVOD).text})
    said, alone = ran(script, tmp_path / "one")
    assert "seen 32 of 1" in said
    said, shared = ran(script, tmp_path / "two", 2)
    assert "seen 32 of 2" in said
    assert set(shared) == set(alone) == {"weight", "bias"}


CLIPPED = TORCH.replace(
    "        optimizer.step()\n",
    "        optimizer.synchronize()\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    "        with optimizer.skip_synchronize():\n            optimizer.step()\n",
)


def test_clipping_between_synchronize_and_step_sees_the_mean():
    text = port(CLIPPED, HOROVOD).text
    assert "dl.gradients(optimizer)\n        torch.nn.utils.clip_grad_norm_" in text
    assert "        optimizer.step()\n    loss" in text
    assert "skip_synchronize" not in text


def test_what_has_no_equivalent_is_refused_with_its_lines():
    with pytest.raises(DlrunError) as error:
        port(TORCH + "\nall_of_them = hvd.allgather(loss)\n", HOROVOD, "train.py")
    assert "train.py:34: hvd.allgather" in error.value.message
    with pytest.raises(DlrunError, match="nothing here is Horovod's"):
        port("import torch\n", HOROVOD)


def test_a_sum_of_gradients_and_a_join_are_doubted():
    ported = port(TORCH.replace("op=hvd.Average", "op=hvd.Adasum") + "\nhvd.join()\n", HOROVOD)
    assert [d.danger for d in ported.doubts].count("high") == 2
    assert "op=hvd.Adasum" in ported.report()


GPUS = """
local_rank = hvd.local_rank()
if local_rank == 0 or gpus[hvd.local_rank()]:
    torch.cuda.set_device(local_rank)
    place = torch.device(f"cuda:{local_rank}"), "cuda:%d" % hvd.local_rank(), x.cuda(local_rank)
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    print(hvd.local_rank(), local_rank)
"""


def test_a_rank_of_the_node_that_numbers_a_gpu_becomes_that_of_the_ranks_own_which_dlrun_launch_shows_first():
    text = port(TORCH + GPUS, HOROVOD).text
    assert (
        text.split("local_rank = ")[1]
        == """dl.get_localrank()
if local_rank == 0 or gpus[dl.get_gpu()]:
    torch.cuda.set_device(dl.get_gpu())
    place = torch.device(f"cuda:{dl.get_gpu()}"), "cuda:%d" % dl.get_gpu(), x.cuda(dl.get_gpu())
    config.gpu_options.visible_device_list = str(dl.get_gpu())
    print(dl.get_localrank(), local_rank)
dl.finalize()  # leave together
"""
    )


KERAS = """
import keras
import horovod.keras as hvd
hvd.init()
optimizer = keras.optimizers.Adam(0.001 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer)
model.compile(optimizer=optimizer, loss="mse")
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
]
model.fit(x, y, callbacks=callbacks, verbose=1 if hvd.rank() == 0 else 0)
"""


def test_keras_callbacks_are_translated():
    text = port(KERAS, HOROVOD).text
    assert "import dl_comm.keras as dl" in text
    assert "dl.Broadcast()," in text
    assert "dl.AverageMetrics()," in text
    assert "dl.init(alike=False)" in text

    def instead(callback):
        return port(KERAS.replace("MetricAverageCallback()", callback), HOROVOD)

    warm = instead("LearningRateWarmupCallback(0.1, warmup_epochs=3)")
    assert "dl.WarmUp(epochs=3)," in warm.text
    assert "not at initial_lr" in warm.report()
    assert "not at initial_lr" not in instead("LearningRateWarmupCallback(0.001 * hvd.size())").report()
    with pytest.raises(DlrunError, match=r"hvd\.callbacks\.LearningRateScheduleCallback"):
        instead("LearningRateScheduleCallback(0.1, 0.5)")


TAPE = """
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()

@tf.function
def step(x, y, first):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=1)
    return loss
"""


def test_a_distributed_tape_becomes_a_mean_of_its_gradients():
    text = port(TAPE, HOROVOD).text
    assert "    tape = tape\n" not in text
    assert "grads = dl.gradients(tape.gradient(loss, model.trainable_variables))" in text
    assert "dl.broadcast_variables(model.variables)" in text
    assert "dl.broadcast_variables(opt.variables(), root=1)" in text


IBM = """
import tensorflow as tf
import ddl
x = x[ddl.rank()::ddl.size()]
opt = tf.train.GradientDescentOptimizer(0.1 * ddl.size())
train = opt.minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(train)
"""


def test_what_importing_ddl_did_by_itself_is_written_out():
    ported = port(IBM, DDL)
    assert "x = x[dl.get_rank()::dl.get_nranks()]" in ported.text
    assert "opt = dl.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1 * dl.get_nranks()))" in ported.text
    assert "sess.run(dl.broadcast_variables(" in ported.report()
    keras = IBM.replace("tf.train.GradientDescentOptimizer", "tf.keras.optimizers.SGD")
    assert "import dl_comm.keras as dl" in port(keras, DDL).text


def test_the_command_translates_and_recognises(tmp_path):
    script = lay(tmp_path, {"train.py": TORCH})
    result = CliRunner().invoke(command, [str(script)])
    assert "already distributed, with Horovod" in str(result.exception or result.output) + result.output
    assert "dlrun port --from horovod" in result.output
    result = CliRunner().invoke(command, ["--from", "horovod", str(script)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "train_dist.py").exists()


def test_the_other_ways_to_write_it():
    source = TORCH.replace("if hvd.size() > 99 else hvd.Compression.none", "if args.fp16 else hvd.Compression.none")
    source = source.replace("compression=compression,", "compression=compression, backward_passes_per_step=2,")
    source = source.replace('loss = hvd.allreduce(loss.detach(), name="loss")', "hvd.allreduce_(loss.data)")
    text = port(source + "epoch = hvd.broadcast_object(epoch, root_rank=1)\n", HOROVOD).text
    assert "compression = None if args.fp16 else None" in text
    assert "dl.DistributedOptimizer(optimizer)\n" in text
    assert "    loss.data.copy_(dl.average(loss.data))\n" in text
    assert "epoch = dl.broadcast(epoch, root=1)" in text
    whole = source.replace("hvd.Compression.fp16 if args.fp16 else hvd.Compression.none", "hvd.Compression.fp16")
    assert "compression = None\n" in port(whole, HOROVOD).text
    with pytest.raises(DlrunError, match=r"train\.py:33: hvd\.elastic\.run"):
        port(TORCH + "hvd.elastic.run(main)()\n", HOROVOD, "train.py")
