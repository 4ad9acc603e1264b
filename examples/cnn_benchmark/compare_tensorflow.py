"""Compare ways to average gradients, in one run: dl_comm, TensorFlow's MultiWorkerMirroredStrategy (gRPC), Horovod.

    dlrun launch -n 2 compare_tensorflow.py --model resnet50 --size 64 --batch-size 8

As compare.py does for PyTorch: each way trains a model of its own on the same images, they take turns, and in the end
all but "none" must hold the same weights.
"""

import argparse
import contextlib
import json
import os
import random
import socket
import time

import dl_comm
import numpy as np
from dl_comm import _core
from table import table


def free_port():
    """Return a port that is free, and is not among those the kernel gives to others by itself in the meantime."""
    for port in random.SystemRandom().sample(range(20000, 30000), 100):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            return port
    raise OSError("found no free port between 20000 and 30000")


def announce_workers():
    """Tell TensorFlow, before it is imported, where its workers are: one on every rank."""
    mine = f"{socket.gethostname()}:{free_port()}"
    workers = [b.decode() for b in _core.allgather_bytes(mine.encode())]
    task = {"type": "worker", "index": dl_comm.get_rank()}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})


def build(model, size, classes):
    import tensorflow as tf

    tf.keras.utils.set_random_seed(1)
    if model == "resnet50":
        return tf.keras.applications.ResNet50(weights=None, input_shape=(size, size, 3), classes=classes)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((size, size, 3)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(size // 8),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(classes, activation="softmax"),
        ]
    )


class Way:
    """One way to train: its model, its optimizer, and a compiled step."""

    def __init__(self, name, args, strategy):
        import dl_comm.tensorflow as dl
        import tensorflow as tf

        self.name, self.seconds = name, []
        average, self.leave = list, lambda: None
        if name == "dl_comm":
            average = dl.gradients
        elif name == "Horovod":
            import horovod.tensorflow as hvd

            average = hvd.grouped_allreduce
            self.leave = hvd.shutdown  # its thread uses MPI until then

        def train(images, labels):
            with tf.GradientTape() as tape:
                predicted = self.model(images, training=True)
                loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, predicted))
            grads = tape.gradient(loss, self.model.trainable_variables)
            if name == "MultiWorkerMirroredStrategy":
                grads = [g / dl_comm.get_nranks() for g in grads]  # its optimizer sums over the workers
            self.optimizer.apply_gradients(zip(average(grads), self.model.trainable_variables))

        def make():
            self.model = build(args.model, args.size, args.classes)
            self.optimizer = tf.keras.optimizers.SGD(0.01)

        if name == "MultiWorkerMirroredStrategy":
            with strategy.scope():
                make()
            self.step = tf.function(lambda images, labels: strategy.run(train, (images, labels)))
        else:
            make()
            self.step = tf.function(train)

    def turn(self, batches):
        """Train on this rank's batches; note the seconds that a step took until all ranks had taken it."""
        dl_comm.barrier()
        start = time.perf_counter()
        for images, labels in batches:
            self.step(images, labels)
        self.optimizer.iterations.numpy()  # waits for the last step
        dl_comm.barrier()
        self.seconds.append((time.perf_counter() - start) / len(batches))


def averaging_alone(arrays, times):
    """Return the seconds that averaging these arrays in place takes while nothing else happens."""
    buffers = [(array.ctypes.data, array.size, "float32") for array in arrays]
    dl_comm.barrier()
    start = time.perf_counter()
    for _ in range(times):
        _core.allreduce(buffers, "mean", 0, [])
    dl_comm.barrier()
    return (time.perf_counter() - start) / times


def ways(args, strategy):
    names = ["none", "dl_comm", "MultiWorkerMirroredStrategy"]
    try:
        import horovod.tensorflow as hvd
    except ImportError:
        say("Horovod is not installed here: left out")
    else:
        hvd.init()
        names.append("Horovod")
    return [Way(name, args, strategy) for name in names]


def say(text):
    if dl_comm.get_rank() == 0:
        print(text, flush=True)


def check(taking_part):
    """Fail unless all that averaged hold the same weights, to the rounding of sums in another order."""
    reference = next(way for way in taking_part if way.name == "dl_comm").model.trainable_variables
    for way in taking_part[1:]:
        for one, other in zip(reference, way.model.trainable_variables, strict=True):
            apart = np.max(np.abs(one.numpy() - other.numpy())) / max(np.max(np.abs(one.numpy())), 1e-6)
            assert apart < 0.02, f"{way.name}: {one.name} differs from dl_comm's by {apart:.1%} of its largest value"


def main():
    parser = argparse.ArgumentParser(description="ways to average gradients, TensorFlow")
    parser.add_argument("--model", choices=["small", "resnet50"], default="small")
    parser.add_argument("--size", type=int, default=32, help="pixels along each side; a multiple of 8")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--steps", type=int, default=5, help="steps a turn")
    parser.add_argument("--turns", type=int, default=9, help="turns of each way; the first is not counted")
    args = parser.parse_args()

    announce_workers()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    generator = np.random.default_rng([1, dl_comm.get_rank()])
    batches = []
    for _ in range(args.steps):
        labels = generator.integers(args.classes, size=args.batch_size)
        images = generator.normal(size=(args.batch_size, args.size, args.size, 3))
        images += labels[:, None, None, None] / args.classes
        batches.append((tf.constant(images, tf.float32), tf.constant(labels)))
    taking_part, alone = ways(args, strategy), []
    gradients = [np.ones(v.shape, np.float32) for v in taking_part[0].model.trainable_variables]
    for turn in range(args.turns):
        for i in range(len(taking_part)):
            taking_part[(turn + i) % len(taking_part)].turn(batches)
        alone.append(averaging_alone(gradients, args.steps))
    check(taking_part)
    n = dl_comm.get_nranks()
    title = f"{args.model}, {n} ranks, {args.batch_size} images of {args.size} x {args.size} a rank and step"
    counted = {way.name: way.seconds[1:] for way in taking_part}
    say("\n" + table(title, n * args.batch_size, counted, alone[1:]))
    for way in taking_part:
        way.leave()
    dl_comm.finalize()


if __name__ == "__main__":
    dl_comm.init_mpi()
    main()
