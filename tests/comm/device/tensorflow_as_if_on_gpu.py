"""Runs checks of ``dl_comm.tensorflow`` (the files named) with TensorFlow's memory on the CPU as that of a GPU.

The fake driver owns all memory. The address that DLPack tells, and all that follows (scratch memory, streams, NCCL or
CUDA IPC), is as on a GPU; only TensorFlow's own operations are done when they return.
"""

import runpy
import sys
from pathlib import Path

FACES = Path(__file__).parents[1] / "faces"


def main() -> None:
    import tensorflow as tf
    from dl_comm.tensorflow import gpu

    tf.test.is_built_with_cuda = lambda: True
    logical_devices = tf.config.list_logical_devices
    tf.config.list_logical_devices = lambda kind=None: logical_devices("CPU" if kind == "GPU" else kind)
    gpu.DEVICE = "/CPU:0"
    sys.path.insert(0, str(FACES))
    sys.argv = [str(FACES / "run_checks.py"), *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


main()
