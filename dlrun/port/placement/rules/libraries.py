"""Rows of what scripts use beside a framework: progress bars, loggers, plots, tables, metric objects."""

from __future__ import annotations

from dlrun.port.placement.rules.rows import Row

FUNCTIONS: dict[str, Row] = {
    "tqdm.tqdm": Row.ITERATES,
    "tqdm.auto.tqdm": Row.ITERATES,
    "tqdm.notebook.tqdm": Row.ITERATES,
    "tqdm.std.tqdm": Row.ITERATES,
    "tqdm.trange": Row.RANGE,
    "tqdm.auto.trange": Row.RANGE,
    "tqdm.tqdm.write": Row.SHOWS,
    "progressbar.progressbar": Row.ITERATES,
    "rich.progress.track": Row.ITERATES,
    "rich.print": Row.SHOWS,
    "click.echo": Row.SHOWS,
    "wandb.log": Row.CURVE,
    "mlflow.log_metric": Row.CURVE,
    "mlflow.log_metrics": Row.CURVE,
    "neptune.log_metric": Row.CURVE,
    "joblib.dump": Row.SHOWS,
    "tensorflow.train.Checkpoint": Row.HOLDS,
    "keras.callbacks.LambdaCallback": Row.HOLDS,
    **dict.fromkeys(
        (
            *(f"imageio.{n}{w}" for n in ("", "v2.", "v3.") for w in ("imwrite", "imsave", "mimwrite", "mimsave")),
            "cv2.imwrite",
            "skimage.io.imsave",
            "scipy.misc.imsave",
            "scipy.io.savemat",
            "scipy.io.wavfile.write",
            "soundfile.write",
            "torchaudio.save",
            "torchvision.utils.save_image",
            "nibabel.save",
            "keras.utils.save_img",
            "keras.preprocessing.image.save_img",
            "tensorflow.io.write_file",
        ),
        Row.WRITES,
    ),
}
METHODS: dict[str, Row] = {
    **{f"add_{n}": Row.CURVE for n in ("scalar", "scalars", "text")},
    **{f"add_{n}": Row.AT_STEP for n in ("histogram", "image", "images", "figure", "embedding", "summary")},
    "add_graph": Row.NOTHING,
    "log": Row.SHOWS,
    "log_metric": Row.CURVE,
    "log_metrics": Row.CURVE,
    "log_dict": Row.SHOWS,
    "record": Row.SHOWS,
    "to_csv": Row.SHOWS,
    "to_json": Row.SHOWS,
    "plot": Row.SHOWS,
}
PREFIXES: tuple[tuple[str, Row], ...] = (
    ("keras.metrics.", Row.STATE),
    ("matplotlib.pyplot.", Row.SHOWS),
    ("pylab.", Row.SHOWS),
    ("wandb.", Row.SHOWS),
)
# In what metric objects keep sums, and those whose result is one.
SUMS = {"total", "count", *(f"{of}_{what}" for of in ("true", "false") for what in ("positives", "negatives"))}
SUMMING = {"Sum", *(f"{of}{what}" for of in ("True", "False") for what in ("Positives", "Negatives"))}
# Objects whose methods show, log or draw what they are given.
OBJECTS: tuple[tuple[str, Row], ...] = tuple(
    (prefix, Row.SHOWS)
    for prefix in (
        "visdom.",
        "torch.utils.tensorboard.",
        "tensorboardX.",
        "wandb.",
        "mlflow.",
        "comet_ml.",
        "neptune.",
        "aim.",
        "clearml.",
        "swanlab.",
        "logging.",
    )
)
