"""What dl_comm.tensorflow must do on every rank in graphs of TensorFlow 1: sessions, hooks, Estimators."""

import datetime
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import dl_comm.tensorflow as dl
import numpy as np
import tensorflow as tf
from agreement import same_bits

_r, _n = dl.get_rank(), dl.get_nranks()
_v1 = tf.compat.v1
dl.init()


def _data():
    generator = np.random.default_rng(2)
    return generator.normal(size=(5, 12, 6)), generator.normal(size=(5, 12, 1))


def several_sparse_gradients_of_a_session_keep_their_own_rows():
    with tf.Graph().as_default(), _v1.Session() as session:
        tables = [tf.IndexedSlices(tf.fill([1, 3], float(k * (_r + 1))), tf.constant([_r]), [_n, 3]) for k in range(8)]
        means = [tf.convert_to_tensor(g) for g in dl.gradients(tables)]
        for _ in range(5):
            for k, got in enumerate(session.run(means)):
                np.testing.assert_allclose(got, np.outer(k * (np.arange(_n) + 1) / _n, np.ones(3)), rtol=1e-6)


class _External:
    """What hands a graph's loss and its packed gradient to a search, as TensorFlow 1's contrib.opt did."""

    def __init__(self, loss, weights):
        self._loss, self._weights = loss, weights
        self._packed_loss_grad = tf.reshape(_v1.gradients(loss, [weights])[0], [-1])

    def minimize(self, session=None, feed_dict=None, fetches=None, loss_callback=None):
        for _ in range(5):  # each step by what this rank is told
            loss, gradient, *shown = session.run([self._loss, self._packed_loss_grad, *fetches], feed_dict)
            loss_callback(*shown, loss)
            session.run(self._weights.assign_sub((gradient * (1 + loss)).reshape(self._weights.shape)))


def a_search_outside_of_the_graph_sees_the_means_of_all_ranks():
    with tf.Graph().as_default(), _v1.Session() as session:
        x = _v1.placeholder(tf.float32, [None, 2])
        weights = tf.Variable(tf.ones([2, 1]))
        loss = tf.reduce_mean(tf.matmul(x, weights) ** 2)
        search, shown = dl.DistributedOptimizer(_External(loss, weights)), []
        session.run(_v1.global_variables_initializer())
        mine = np.random.default_rng(_r).normal(size=(4, 2)) * 0.2
        search.minimize(session, {x: mine}, fetches=[loss], loss_callback=lambda *losses: shown.append(losses))
        assert all(fetched == told for fetched, told in shown) and len(shown) == 5
        same_bits([session.run(weights)])


def a_graph_that_is_closed_takes_the_broadcast_and_is_closed_again():
    with tf.Graph().as_default() as graph, _v1.Session() as session:
        weights = tf.Variable(tf.fill([3], float(_r + 5)))
        session.run(_v1.global_variables_initializer())
        graph.finalize()
        session.run(dl.broadcast_variables())
        with np.testing.assert_raises(RuntimeError):
            tf.no_op()
        np.testing.assert_array_equal(session.run(weights), [5.0, 5.0, 5.0])


def ops_of_a_session_may_run_in_another_order_on_every_rank():
    with tf.Graph().as_default(), _v1.Session() as session:
        means = [dl.gradients([tf.fill([k + 1], float(_r * k))])[0] for k in range(8)]
        for _ in range(5):
            order = np.random.default_rng(_r).permutation(8)
            results = session.run([means[k] for k in order])
            assert all((got == k * (_n - 1) / 2).all() for k, got in zip(order, results, strict=True))


def random_ops_of_a_session_draw_apart_and_orders_alike():
    with tf.Graph().as_default(), _v1.Session() as session:
        _v1.set_random_seed(3)
        noise, order = _v1.random_uniform([4]), _v1.random_shuffle(tf.range(9))
        ranks = session.run(dl.gradients([noise, tf.one_hot(_r, _n)[:, None] * noise, tf.cast(order, tf.float64)]))
        assert len({row.tobytes() for row in ranks[1]}) == _n
        assert sorted(ranks[2]) == list(range(9))


def an_iterator_that_is_initialized_again_goes_in_another_order_which_the_ranks_share():
    with tf.Graph().as_default(), _v1.Session() as session:
        data = dl.shard(tf.data.Dataset.range(10 * _n).shuffle(10 * _n).batch(1))
        again, once = _v1.data.make_initializable_iterator(data), _v1.data.make_one_shot_iterator(data).get_next()
        batch, epochs = again.get_next(), []
        for iterator in (batch, batch, once):
            if iterator is batch:
                session.run(again.initializer)
            epochs.append([int(session.run(iterator)[0]) for _ in range(10)])
        assert epochs[0] != epochs[1]
        for epoch in epochs:
            assert (dl.total(np.isin(np.arange(10 * _n), epoch).astype(np.float64)) == 1).all()


def values_that_cannot_change_in_place_come_back_as_rank_0s():
    for mine in (f"run-{_r}", _r, datetime.datetime(2020, 1, 1 + _r), None):
        theirs = [f"run-{0}", 0, datetime.datetime(2020, 1, 1), None]
        assert dl.broadcast(mine) in theirs


def sessions_train_like_one_process():
    x, y = _data()

    def train(mine, how, x):
        with tf.Graph().as_default():
            a, b = _v1.placeholder(tf.float64, [None, 6]), _v1.placeholder(tf.float64, [None, 1])
            first = np.linspace(-1, 1, 6)[:, None] + (_r if how in ("hook", "minimize") else 0)
            v = _v1.get_variable("v", initializer=first, use_resource=how != "hook")
            loss = tf.reduce_mean((tf.tanh(a @ v) - b) ** 2)
            step = _v1.train.get_or_create_global_step()
            opt = _v1.train.MomentumOptimizer(0.1, 0.9)
            if how in ("minimize", "apply"):
                opt = dl.DistributedOptimizer(opt)
            if how == "minimize":
                train_op = opt.minimize(loss, step)
            elif how == "apply":
                train_op = opt.apply_gradients(zip(tf.gradients(loss, [v]), [v], strict=True), step)
            else:
                pairs = opt.compute_gradients(loss)
                if how == "hook":
                    pairs = list(zip(dl.gradients([g for g, _ in pairs], 0), [v], strict=True))
                train_op = opt.apply_gradients(pairs, step)
            hooks = [dl.BroadcastHook()] if how in ("hook", "minimize") else []
            with _v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                for k in range(5):
                    session.run(train_op, {a: x[k][mine], b: y[k][mine]})
                return session.run(v)

    infinite = x.copy()
    infinite[2, _n - 1, 0] = np.inf  # in the last rank's third batch
    for given in (x, infinite):
        serial = train(slice(None), "serial", given)
        assert np.isfinite(serial).all() == (given is x)
        for how in ("minimize", "apply", "hook"):
            ported = train(slice(_r, None, _n), how, given)
            np.testing.assert_allclose(ported, serial, rtol=1e-11)
            same_bits([ported])


def a_supervisor_trains_like_one_process_and_goes_on_from_rank_0s_checkpoint():
    x, y = _data()

    def train(mine, supervisor, folder):
        distributed = supervisor is dl.Supervisor
        for first, last in ((0, 3), (3, 5)):
            with tf.Graph().as_default():
                a, b = _v1.placeholder(tf.float64, [None, 6]), _v1.placeholder(tf.float64, [None, 1])
                start = np.linspace(-1, 1, 6)[:, None] + (_r + first if distributed else 0)
                v = _v1.get_variable("v", initializer=start)
                loss = tf.reduce_mean((tf.tanh(a @ v) - b) ** 2)
                step = _v1.train.get_or_create_global_step()
                opt = _v1.train.MomentumOptimizer(0.1, 0.9)
                train_op = (dl.DistributedOptimizer(opt) if distributed else opt).minimize(loss, step)
                summary = _v1.summary.scalar("loss", loss)
                sv = supervisor(logdir=folder, save_model_secs=0, save_summaries_secs=0, summary_op=None)
                with sv.managed_session() as session:
                    assert session.run(step) == first
                    for k in range(first, last):
                        _, said = session.run([train_op, summary], {a: x[k][mine], b: y[k][mine]})
                        sv.summary_computed(session, said)
                    sv.summary_writer.flush()
                    found = session.run(v)
                    if _r == 0 or not distributed:
                        sv.saver.save(session, sv.save_path, global_step=step)
        return found

    folder = tempfile.mkdtemp()
    serial = train(slice(None), _v1.train.Supervisor, tempfile.mkdtemp())
    ported = train(slice(_r, None, _n), dl.Supervisor, folder)
    np.testing.assert_allclose(ported, serial, rtol=1e-11)
    same_bits([ported])
    assert any(Path(folder).iterdir()) == (_r == 0)


def a_supervisor_leaves_out_the_summaries_for_which_all_ranks_would_have_to_come():
    with tf.Graph().as_default():
        v = _v1.get_variable("v", initializer=1.0)
        (mean,) = dl.gradients([v * (_r + 1)])
        _v1.summary.scalar("mean", mean)
        sv = dl.Supervisor(logdir=tempfile.mkdtemp(), save_summaries_secs=1, save_model_secs=0)
        with sv.managed_session() as session:
            assert not any("SVSummary" in type(t).__name__ for t in sv.start_standard_services(session) or ())
            assert session.run(sv.summary_op)
        try:
            dl.Supervisor(is_chief=False)
        except ValueError as error:
            assert "is_chief" in str(error)
        else:
            raise AssertionError("a rank that is nobody's chief")


def an_estimator_trains_like_one_process():
    if not hasattr(tf.compat.v1, "estimator"):
        return "TensorFlow has no Estimator from 2.16 on"
    x, y = _data()

    def train(mine, distributed):
        def model_fn(features, labels, mode):
            first = np.linspace(-1, 1, 6)[:, None] + (_r if distributed else 0)
            v = _v1.get_variable("v", initializer=first)
            loss = tf.reduce_mean((tf.tanh(features @ v) - labels) ** 2)
            opt = _v1.train.MomentumOptimizer(0.1, 0.9)
            pairs = opt.compute_gradients(loss)
            if distributed:
                pairs = list(zip(dl.gradients([g for g, _ in pairs], 0), [v for _, v in pairs], strict=True))
            step = opt.apply_gradients(pairs, _v1.train.get_global_step())
            return _v1.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

        def input_fn():
            return tf.data.Dataset.from_tensor_slices((x[:, mine], y[:, mine]))

        estimator = _v1.estimator.Estimator(model_fn, model_dir=tempfile.mkdtemp())
        for _ in range(2):  # the graph is made anew at each call
            estimator.train(input_fn, hooks=[dl.BroadcastHook()] if distributed else [], steps=3)
        return estimator.get_variable_value("v")

    ported = train(slice(_r, None, _n), True)
    np.testing.assert_allclose(ported, train(slice(None), False), rtol=1e-11)
    same_bits([ported])
    return None


def what_an_estimator_exports_loads_without_dl_comm():
    if not hasattr(tf.compat.v1, "estimator"):
        return "TensorFlow has no Estimator from 2.16 on"

    def model_fn(features, labels, mode):
        v = _v1.get_variable("v", initializer=np.ones((6, 1)) + _r)
        predicted = features["x"] @ v
        if mode == _v1.estimator.ModeKeys.PREDICT:
            return _v1.estimator.EstimatorSpec(mode, predictions={"y": predicted})
        loss = tf.reduce_mean((predicted - labels) ** 2)
        optimizer = dl.DistributedOptimizer(_v1.train.AdamOptimizer(0.1))
        step = optimizer.minimize(loss, _v1.train.get_global_step())
        return _v1.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

    x, y = _data()
    estimator = _v1.estimator.Estimator(model_fn, model_dir=tempfile.mkdtemp())
    estimator.train(lambda: tf.data.Dataset.from_tensors(({"x": x[0]}, y[0])).repeat(3), hooks=[dl.BroadcastHook()])
    if _r > 0:
        return None

    def given():
        features = {"x": _v1.placeholder(tf.float64, [None, 6])}
        return _v1.estimator.export.ServingInputReceiver(features, features)

    folder = estimator.export_saved_model(tempfile.mkdtemp(), given).decode()
    np.save(folder + "/x.npy", x[0])
    np.save(folder + "/y.npy", x[0] @ estimator.get_variable_value("v"))
    program = (
        "import sys; sys.modules['dl_comm'] = None\n"
        "import numpy as np, tensorflow as tf\n"
        "folder = sys.argv[1]\n"
        "serve = tf.saved_model.load(folder).signatures['serving_default']\n"
        "got = serve(tf.constant(np.load(folder + '/x.npy')))['y'].numpy()\n"
        "np.testing.assert_allclose(got, np.load(folder + '/y.npy'), rtol=1e-12)\n"
    )
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDRA", "MPI"))}
    command = [sys.executable, "-c", program, folder]
    done = subprocess.run(command, capture_output=True, text=True, env=alone, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return None
