"""A small classifier trained with fit(), ported."""

import dl_comm.keras as dl
import keras
import numpy as np

dl.init()
print = dl.print

keras.utils.set_random_seed(0)
rows = np.random.RandomState(0).randn(48, 8).astype("float32")
labels = (rows.sum(1) > 0).astype("int64")
model = keras.Sequential(
    [
        keras.layers.Input((8,)),
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(2),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(dl.lr_scale(0.1), momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
dl.distribute(model)
model.fit(rows, labels, batch_size=8, epochs=2, verbose=0)
dl.rank0(model.save)("fit.keras")
dl.finalize()
