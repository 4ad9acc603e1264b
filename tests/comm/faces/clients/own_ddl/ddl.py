"""A module as sites had beside their scripts: it loads DDL's operators and makes TensorFlow use them."""

import os

import tensorflow.compat.v1 as tf
from tensorflow.python.training import optimizer

SIZE = int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
LOCAL_RANK = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", 0))
operators = None


def rank():
    return RANK


def size():
    return SIZE


def start(options):
    global operators
    operators = tf.load_op_library("ddl_MDR.so")
    with tf.Session() as session:
        session.run(operators.init(LOCAL_RANK, mode=options))


make_variable = tf.Variable.__init__
last = None


def variable_of_rank_0(self, *args, **kwargs):
    global last
    if kwargs.get("trainable") and "initial_value" in kwargs:
        value = kwargs.pop("initial_value")
        value = value() if callable(value) else value
        with tf.control_dependencies([] if last is None else [last]):
            last = kwargs["initial_value"] = operators.bcast(value)
    make_variable(self, *args, **kwargs)


apply_own = optimizer.Optimizer.apply_gradients


def apply_averaged(self, grads_and_vars, global_step=None, name=None):
    grads, variables = zip(*grads_and_vars)
    with tf.device("/cpu:0"):
        means = operators.all_reduce_n(grads, op="avg")
    return apply_own(self, zip(means, variables), global_step, name)


if "OMPI_COMM_WORLD_SIZE" in os.environ:
    start(os.environ["DDL_OPTIONS"])
    tf.Variable.__init__ = variable_of_rank_0
    optimizer.Optimizer.apply_gradients = apply_averaged
