"""A GPU that a script gives by its number is this rank's in the port, however it is spelt."""

import pytest
from small import HEAD, LOOP, SERIAL

from dlrun.port import port

OWN_GPU = "torch.cuda.current_device() if torch.cuda.is_available() else -1"
OWN_MAP = '{"": torch.cuda.current_device() if torch.cuda.is_available() else "cpu"}'


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ('torch.cuda.set_device("cuda:0")', "torch.cuda.set_device(torch.cuda.current_device())"),
        ('torch.cuda.set_device("cuda:{}".format(gpu))', "torch.cuda.set_device(torch.cuda.current_device())"),
        ('torch.cuda.set_device(device="cuda:%d" % gpu)', "torch.cuda.set_device(device=torch.cuda.current_device())"),
        ("torch.cuda.set_device(args.gpu)", f"torch.cuda.set_device({OWN_GPU})"),
        ('torch.cuda.set_device(torch.device("cuda:0"))', f"torch.cuda.set_device({OWN_GPU})"),
        ('with torch.cuda.device("cuda:1"): pass', f"with torch.cuda.device({OWN_GPU}): pass"),
        ('place = torch.device("cuda", gpu)', 'place = torch.device("cuda")'),
        ('place = torch.device(type="cuda", index=0)', 'place = torch.device(type="cuda")'),
        ("place = torch.device(gpu)", 'place = torch.device("cuda")'),
        ("model.cuda(gpu)", "model.cuda()"),
        ("model.cuda(device=args.gpu)", "model.cuda()"),
        ("x.cuda(args.gpu, non_blocking=True)", "x.cuda(non_blocking=True)"),
        ("model.to(0)", 'model.to("cuda")'),
        ("model.to(gpu)", 'model.to("cuda")'),
        ("torch.zeros(2, device=0)", 'torch.zeros(2, device="cuda")'),
        ("pipe = pipeline('fill-mask', device=0)", f"pipe = pipeline('fill-mask', device={OWN_GPU})"),
        ('AutoModel.from_pretrained(a, device_map="auto")', f"AutoModel.from_pretrained(a, device_map={OWN_MAP})"),
        ('AutoModel.from_pretrained(a, device_map={"": 0})', f"AutoModel.from_pretrained(a, device_map={OWN_MAP})"),
        ("torch.load(f, map_location={'cuda:1': 'cuda:0'})", "dl.load(f, map_location={'cuda:1': 'cuda'})"),
    ],
)
def test_a_gpu_is_this_ranks_in_every_spelling(line, after):
    head = "from transformers import AutoModel, pipeline\ngpu = 0\n"
    text = port(head + SERIAL + line + "\n").text
    assert f"\n{after}\n" in text


def test_devices_that_are_no_gpu_of_a_number_stay():
    line = 'd = torch.device("cuda" if ok else "cpu")\nmodel.cuda(d)\nx.to(torch.float16)\ntorch.device("cpu", 0)\n'
    assert line in port(SERIAL + line).text


KERAS = """\
import keras
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
CHOICE
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
model.fit(x, y)
"""


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("tf.config.set_visible_devices(gpus[1], 'GPU')", "tf.config.set_visible_devices(gpus[dl.get_gpu()], 'GPU')"),
        (
            "tf.config.set_visible_devices([gpus[g]], 'GPU')",
            "tf.config.set_visible_devices([gpus[dl.get_gpu()]], 'GPU')",
        ),
        ("tf.config.set_visible_devices([], 'GPU')", "tf.config.set_visible_devices([], 'GPU')"),
        ("with tf.device('/GPU:2'): pass", "with tf.device('/GPU:0'): pass"),
        ("with tf.device('/device:GPU:1'): pass", "with tf.device('/device:GPU:0'): pass"),
        ("with tf.device('/cpu:0'): pass", "with tf.device('/cpu:0'): pass"),
    ],
)
def test_tensorflows_gpu_is_this_ranks_too(line, after):
    assert f"\n{after}\n" in port(KERAS.replace("CHOICE", line)).text


@pytest.mark.parametrize("reads", ["yaml.safe_load(file)", "json.load(file)", "OmegaConf.load('conf.yaml')"])
def test_a_device_that_a_file_names_is_doubted(reads):
    head = f"import json, yaml\nfrom omegaconf import OmegaConf\nfile = open('conf.yaml')\ncfg = {reads}\n"
    made = "device = torch.device(cfg['device'] if torch.cuda.is_available() else 'cpu')\n"
    ported = port(f"{head}{HEAD}{made}model.to(device)\n{LOOP}")
    assert [(d.name, d.danger) for d in ported.doubts if d.name == "fixed-gpu"] == [("fixed-gpu", "medium")]
    plain = port(f"{head}{HEAD}device = torch.device('cuda')\nmodel.to(device)\n{LOOP}")
    assert not [d for d in plain.doubts if d.name == "fixed-gpu"]
