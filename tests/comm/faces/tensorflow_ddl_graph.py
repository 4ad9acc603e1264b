"""Scripts for IBM's DDL where TensorFlow 1 behaves as it did: Keras in graphs, the operators, models to be served."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

import ddl  # noqa: E402
import dl_comm  # noqa: E402
from ddl import averaging  # noqa: E402

_r, _n = ddl.rank(), ddl.size()
_x = np.random.RandomState(3).randn(24, 5).astype("f4")
_y = np.random.RandomState(4).randn(24, 1).astype("f4")


def _serial(rate, batch):
    w = np.ones((5, 1))
    for begin in range(0, len(_x), batch):
        x, y = _x[begin : begin + batch], _y[begin : begin + batch]
        w -= rate * x.T @ (2 * (x @ w - y)) / batch
    return w


def _first(shape, dtype=None, partition_info=None):
    return tf.ones(shape) + float(_r)


def keras_in_a_graph_trains_like_one_process():
    if not hasattr(tf.keras.backend, "get_session"):
        return "Keras 3 has no graphs of TensorFlow 1"
    for callbacks in ([ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()], []):
        for optimizer in (tf.keras.optimizers.legacy.SGD(0.1), tf.train.GradientDescentOptimizer(0.1)):
            tf.keras.backend.clear_session()
            model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer=_first)])
            model.compile(optimizer, "mse")
            data = _x[_r::_n], _y[_r::_n]
            got = model.fit(*data, batch_size=12 // _n, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
            np.testing.assert_allclose(model.get_weights()[0], _serial(0.1, 12), rtol=1e-5)
            if callbacks:
                losses = np.array(got.history["loss"])
                assert dl_comm.check_buffers_match([losses]) == 0
    return None


def the_operators_of_ddl_run_in_a_session():
    with tf.Graph().as_default(), tf.Session() as session:
        place = session.run(ddl.init(_r, mode="-mode r:4 -dump_iter 100", pci=True))
        assert tuple(place) == (_r, _n, _r, _n, _r), place
        assert session.run(ddl.init("-mode b:1x2"))[1] == _n
        g = tf.constant([1.0, 2.0]) * (_r + 1)
        total = np.array([1.0, 2.0]) * _n * (_n + 1) / 2
        for call, factor in (
            (ddl.all_reduce_n([g], op="avg"), 1 / _n),
            (ddl.all_reduce_n([g], op="sum", mpi=True), 1),
            (ddl.all_reduce_n([g], "avg", check=0.01), 1 / _n),
            ([ddl.all_reduce(g, "sum")], 1),
            (ddl.allreduce_n([g], False, "", ""), 1),
            (ddl.allreduce_n([g], device_dense="/gpu:0", device_sparse=""), 1 / _n),
        ):
            np.testing.assert_allclose(session.run(call[0]), total * factor, rtol=1e-6)
        sent = [ddl.bcast(tf.fill([3], float(_r + i))) for i in range(300)]
        for i, value in enumerate(session.run(sent)):
            assert value.tolist() == [i] * 3
        try:
            ddl.all_reduce_n([g], op="max")
        except ValueError as error:
            assert str(error) == "the op of a reduction is 'max', and DDL has 'avg' and 'sum': give it one of these"
        else:
            raise AssertionError("no error")


def operators_are_found_under_the_path_of_ddl_1():
    operators = tf.load_op_library("/opt/DL/ddl-tensorflow/lib/ddl_MDR.so")
    with tf.Graph().as_default(), tf.Session() as session:
        rank, size, gpuid = session.run(operators.init(4, mode="-mode r:4 -dump_iter 100"))
        assert (rank, size, gpuid) == (_r, _n, _r)
        ops = [operators.all_reduce(tf.fill([2], float(_r + k)), op="avg") for k in range(300)]
        for k, value in enumerate(session.run(ops)):
            assert value.tolist() == [k + (_n - 1) / 2] * 2
        odd = operators.all_reduce_n([tf.zeros([2]), tf.constant([1.0, float("nan")])], op="sum", check=0.1)
        for wanted, told in ((odd, "differs from MPI's reduction by nan"), (operators.bcast(tf.zeros([])), "")):
            try:
                session.run(wanted)
            except tf.errors.InternalError as error:
                assert told and told in str(error), error
            else:
                assert not told
        try:
            operators.all_reduce(tf.zeros([2]), op="max")
        except ValueError as error:
            assert '"sum", "avg"' in str(error), error
        else:
            raise AssertionError("no error")


def without_ddl_options_a_script_that_calls_init_calls_all_else_itself():
    options = os.environ.pop("DDL_OPTIONS")
    try:
        ddl.init("-mode r:3")
        with tf.Graph().as_default(), tf.Session() as session:
            v = tf.get_variable("v", initializer=tf.fill([2], float(_r)))
            sent = tf.Variable(ddl.bcast(tf.fill([2], float(_r))))
            optimizer = tf.train.GradientDescentOptimizer(1.0)
            own = optimizer.apply_gradients([(tf.fill([2], float(_r)), v)])
            averaged = optimizer.apply_gradients(ddl.grads_reduce([(tf.fill([2], float(_r)), sent)]))
            session.run(tf.global_variables_initializer())
            assert session.run([v, sent])[0].tolist() == [_r, _r]
            session.run([own, averaged])
            found = session.run([v, sent])
            assert found[0].tolist() == [0, 0], found
            assert found[1].tolist() == [-(_n - 1) / 2] * 2, found
    finally:
        os.environ["DDL_OPTIONS"] = options
        averaging.explicit = False


def gradients_are_reduced_in_groups_of_about_ddl_group_size():
    os.environ["DDL_GROUP_SIZE"] = "5"
    try:
        with tf.Graph().as_default() as graph, tf.Session() as session:
            pairs = [(tf.fill([k], float(_r + k)), tf.get_variable(f"v{k}", [k])) for k in (2, 3, 4, 9, 1)]
            means = [g for g, _ in ddl.grads_reduce(pairs)]
            session.run(tf.global_variables_initializer())
            for k, mean in zip((2, 3, 4, 9, 1), session.run(means), strict=True):
                assert mean.tolist() == [k + (_n - 1) / 2] * k
            ops = [op for op in graph.get_operations() if op.type == "DlReduce" and op.get_attr("op") == b"mean"]
            assert [len(op.outputs) for op in ops] == [2, 1, 1, 1]
    finally:
        del os.environ["DDL_GROUP_SIZE"]


_LOADS = """
import sys, numpy as np, tensorflow.compat.v1 as tf
sys.modules["dl_comm"] = None
with tf.Session(graph=tf.Graph()) as session:
    tf.saved_model.loader.load(session, ["serve"], sys.argv[1])
    print(session.run("logits:0", {"x:0": np.ones((2, 5), "f4")}).ravel().tolist())
    session.run("w/Assign")  # the initializer
    assert not any(op.type == "DlReduce" for op in session.graph.get_operations())
"""


def a_model_is_served_from_the_graph_before_training_and_a_checkpoint():
    folder = Path(tempfile.mkdtemp())
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 5], name="x")
        w = tf.get_variable("w", [5, 1])
        tf.matmul(x, w, name="logits")
        restorer = tf.train.Saver()
        tf.train.export_meta_graph(str(folder / "base.meta"), saver_def=restorer.as_saver_def())
        loss = tf.reduce_mean((tf.get_default_graph().get_tensor_by_name("logits:0") - _y[_r::_n]) ** 2)
        step = tf.train.AdamOptimizer(0.1).minimize(loss)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                session.run(step, {x: _x[_r::_n]})
            expected = session.run("logits:0", {x: np.ones((2, 5), "f4")})
            checkpoint = tf.train.Saver().save(session, str(folder / "trained"))
    assert dl_comm.check_buffers_match([expected]) == 0
    if _r > 0:
        return
    with tf.Graph().as_default() as graph, tf.Session() as session:
        restorer = tf.train.import_meta_graph(str(folder / "base.meta"))
        restorer.restore(session, checkpoint)
        given, found = (graph.get_tensor_by_name(name) for name in ("x:0", "logits:0"))
        signature = tf.saved_model.signature_def_utils.predict_signature_def({"x": given}, {"logits": found})
        builder = tf.saved_model.builder.SavedModelBuilder(str(folder / "served"))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "MPI", "DL_COMM"))}
    done = subprocess.run(
        [sys.executable, "-c", _LOADS, str(folder / "served")], capture_output=True, text=True, env=alone, check=False
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(eval(done.stdout), expected.ravel(), rtol=1e-5)
