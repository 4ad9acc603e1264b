"""Cray's names in Python: phases, reports, averages, on one rank and under mpiexec."""

from __future__ import annotations

import subprocess
import sys

import pytest
from dl_comm.schedule import Phases, lagging_share


def shares(calls, **phases):
    return [lagging_share(Phases(**phases), call) for call in range(calls)]


def test_a_warm_up_blocks_for_ksteps_calls_and_then_lags():
    assert shares(6, ksteps=3, max_steps=6) == [0, 0, 0, 1, 1, 1]


def test_ksteps_equal_to_max_steps_always_blocks_also_beyond_the_end():
    assert shares(9, ksteps=5, max_steps=5) == [0] * 9
    assert shares(9, ksteps=5, max_steps=5, transition=16) == [0] * 9


def test_a_cool_down_blocks_from_step_ksteps_as_in_the_manual():
    assert shares(11, ksteps=-9, max_steps=10) == [1] * 9 + [0, 0]


def test_a_cool_down_read_the_other_way_blocks_for_the_last_ksteps():
    assert shares(11, ksteps=-2, max_steps=10, cooldown="last") == [1] * 8 + [0] * 3


def test_a_smooth_transition_blends_over_its_window():
    assert shares(7, ksteps=2, max_steps=7, transition=3) == [0, 0, 0.25, 0.5, 0.75, 1, 1]
    assert shares(7, ksteps=-2, max_steps=7, transition=3) == [1, 1, 0.75, 0.5, 0.25, 0, 0]


def test_the_window_is_at_least_one_percent_of_all_steps():
    assert Phases(transition=1, ksteps=10, max_steps=1000).window == 10
    assert Phases(transition=16, ksteps=10, max_steps=1000).window == 16
    assert Phases(transition=0, ksteps=10, max_steps=1000).window == 0


MODES = """
    import numpy as np, dl_comm
    dl_comm.init(1, 2, 1000, "tensorflow")
    rank = dl_comm.get_rank()
    def run(team, **phases):
        dl_comm.config_team(team, **phases)
        seen = []
        for step in range(6):
            mean, = dl_comm.gradients([np.full(3, 10 * step + 2 * rank, "f4")], team)
            seen.append(round(float(mean[0]), 4))
            mean *= 100  # it is the caller's now
        return seen
    assert run(0, ksteps=2, max_steps=6) == [1, 11, 21, 21, 31, 41], run
    assert run(1, ksteps=6, max_steps=6) == [1, 11, 21, 31, 41, 51]
    dl_comm.create_team(2, 1, 1)
    assert run(2, ksteps=-3, max_steps=6) == [1, 1, 11, 31, 41, 51]
    blended = run(3, transition=1, ksteps=2, max_steps=6)
    assert blended == [1, 11, 21, 21, 31, 41], blended
    blended = run(4, transition=4, ksteps=1, max_steps=10)  # a fifth more of the mean before, call by call
    assert blended == [1, 11, 17, 25, 33, 41], blended
    blended = run(5, transition=4, ksteps=-1, max_steps=10)  # and a fifth less
    assert blended == [1, 3, 15, 27, 39, 51], blended
    print("rank", rank, "right", flush=True)
    dl_comm.finalize()
    dl_comm.finalize()
"""


GOES_ON = """
    import numpy as np, dl_comm
    dl_comm.init()
    rank, seen = dl_comm.get_rank(), []
    dl_comm.config_team(0, transition={transition}, ksteps={ksteps}, max_steps=10)
    for step in range(8):
        length = 3 + rank * (step == {wrong})
        try:
            mean, = dl_comm.gradients([np.full(length, 10 * step + 2 * rank, "f4")])
        except dl_comm.CommError as error:
            assert "the ranks do not agree" in str(error)
            seen.append(None)
        else:
            seen.append(round(float(mean[0]), 4))
    print("rank", rank, *seen, flush=True)
    dl_comm.finalize()
"""


@pytest.mark.parametrize(
    ("wrong", "ksteps", "transition", "seen"),
    [
        (3, 2, 0, "1.0 11.0 21.0 21.0 None 41.0 51.0 61.0"),  # told in the call after, which goes on
        (2, 2, 0, "1.0 11.0 None 31.0 31.0 41.0 51.0 61.0"),  # the first that is pipelined waits for itself
        (1, -4, 0, "1.0 1.0 None 21.0 31.0 51.0 61.0 71.0"),
        (3, -4, 0, "1.0 1.0 11.0 21.0 None 51.0 61.0 71.0"),
        (2, 1, 4, "1.0 11.0 None 31.0 35.0 43.0 51.0 61.0"),
    ],
)
def test_after_a_disagreement_pipelined_calls_return_means_again(job, any_mpi, wrong, ksteps, transition, seen):
    ended = job(any_mpi, 2, GOES_ON.format(wrong=wrong, ksteps=ksteps, transition=transition))
    assert ended.lines("rank") == [f"rank {rank} {seen}" for rank in range(2)], ended.output


def test_pipelined_calls_return_the_mean_of_the_step_before(job, any_mpi):
    ended = job(any_mpi, 2, MODES)
    assert len(ended.lines("rank")) == 2, ended.output
    assert ended.code == 0


REPORTS = """
    import numpy as np, dl_comm
    dl_comm.init(1, 1, 5)
    dl_comm.config_team(0, 0, 4, 4, verbosity={verbosity}, perf_freq=2)
    for step in range(4):
        dl_comm.gradients([np.ones(5, "f4")], 0)
    dl_comm.finalize()
"""


@pytest.mark.parametrize(("verbosity", "speakers"), [(0, 0), (1, 1), (2, 2)])
def test_the_report_comes_in_the_published_words_at_the_published_calls(job, any_mpi, verbosity, speakers):
    ended = job(any_mpi, 2, REPORTS.format(verbosity=verbosity))
    lines = ended.lines("Rank")
    begun = [line for line in lines if "has waited a total of" in line]
    assert len(begun) == 2 * speakers
    assert all("seconds for communication to complete so far on team 0 (calls = " in line for line in begun)
    assert {line.split("calls = ")[1] for line in begun} <= {"0)", "2)"}
    total = [line for line in lines if "summed across all thread teams" in line]
    assert len(total) == speakers, ended.output


def test_both_older_names_import_and_are_the_same():
    import dl_comm
    import ml_comm

    assert ml_comm.gradients is dl_comm.gradients
    assert set(ml_comm.__all__) == set(dl_comm.__all__)


def test_the_older_torch_optimizer_averages_gradients(job, any_mpi):
    pytest.importorskip("torch")
    program = """
        import torch
        torch.set_num_threads(1)
        from ml_comm_torch import DistributedOptimizer
        import dl_comm
        dl_comm.init_mpi()
        rank = dl_comm.get_rank()
        model = torch.nn.Linear(3, 1)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), 10, warmup=1.0, verb=0)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        model(torch.full((1, 3), float(rank))).sum().backward()
        optimizer.step()
        moved = [old - new.detach() for old, new in zip(before, model.parameters())]
        assert torch.allclose(moved[0], torch.full((1, 3), 0.5)) and torch.allclose(moved[1], torch.ones(1)), moved
        assert dl_comm.check_buffers_match([parameter.data for parameter in model.parameters()]) == 0
        print("rank", rank, "right", flush=True)
    """
    ended = job(any_mpi, 2, program)
    assert len(ended.lines("rank")) == 2, ended.output


def test_the_older_torch_optimizer_is_one_of_torch_in_every_way_that_scripts_use(job, any_mpi):
    pytest.importorskip("torch")
    program = """
        import copy, pickle, torch
        import ml_comm_torch as mc
        torch.set_num_threads(1)
        mc.init_mpi()
        rank, n = mc.get_rank(), mc.get_nranks()
        assert n == 2 and mc.get_localrank() == rank and mc.check_buffers_match([torch.ones(2)]) == 0
        x, y = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(1)).double()
        def make(kind=torch.optim.Adam, **options):
            torch.manual_seed(7)
            model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).double()
            optimizer = kind(list(model.parameters()) + [unused], lr=0.1, **options)
            return model, optimizer
        def train(model, optimizer, x, y, steps=3, closure=False):
            for _ in range(steps):
                def evaluate():
                    optimizer.zero_grad()
                    loss = ((torch.tanh(model(x)) - y) ** 2).mean()
                    loss.backward()
                    return loss
                optimizer.step(evaluate) if closure else (evaluate(), optimizer.step())
            return [p.detach().clone() for p in model.parameters()]
        unused = torch.nn.Parameter(torch.ones(2).double())
        def same(some, others):
            assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(some, others)), (some, others)
        for kind, options, closure in ((torch.optim.Adam, {"weight_decay": 0.1}, False), (torch.optim.SGD, {}, True),
                                       (torch.optim.LBFGS, {"line_search_fn": "strong_wolfe"}, True)):
            if kind is torch.optim.LBFGS:
                unused = torch.nn.Parameter(torch.ones(0).double())
            model, plain = make(kind, **options)
            expected = train(model, plain, x, y, closure=closure)
            model, plain = make(kind, **options)
            optimizer = mc.DistributedOptimizer(plain, 100, warmup=1.0, verb=0)
            assert isinstance(optimizer, torch.optim.Optimizer)
            same(train(model, optimizer, x[rank::n], y[rank::n], closure=closure), expected)
            assert bool((unused == 1).all())  # without a gradient on all ranks
        # A scheduler, groups, state and hooks are those of the optimizer.
        model, plain = make(torch.optim.SGD)
        optimizer = mc.DistributedOptimizer(plain, 100, warmup=1.0, verb=0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 0.5**e)
        seen = []
        optimizer.register_step_post_hook(lambda *arguments: seen.append(1))
        train(model, optimizer, x[rank::n], y[rank::n], 1)
        scheduler.step()
        assert (plain.param_groups[0]["lr"], seen, optimizer.defaults["lr"]) == (0.05, [1], 0.1)
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.param_groups[0]["lr"] = 1.0
        assert plain.param_groups[0]["lr"] == 1.0 and optimizer.param_groups is plain.param_groups
        # Copies average, too.
        for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
            assert isinstance(twin, mc.DistributedOptimizer)
            for p in twin.param_groups[0]["params"]:
                p.grad = torch.full_like(p, float(rank))
            before = [p.detach().clone() for p in twin.param_groups[0]["params"]]
            twin.step()
            same(before, [p.detach() + 0.5 for p in twin.param_groups[0]["params"]])
        # An overflow on one rank skips the step on all.
        scaler = torch.amp.GradScaler("cpu")
        for large in (1.0, float("inf")):
            optimizer.zero_grad()
            scaler.scale(model(x).mean() * (large if rank else 1.0)).backward()
            before = [p.detach().clone() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            moved = any(not torch.equal(p.detach(), old) for p, old in zip(model.parameters(), before))
            assert moved == (large == 1.0)
        table = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = mc.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), 100, warmup=1.0, verb=0)
        before = table.weight.detach().clone()
        table(torch.tensor([rank])).sum().backward()
        optimizer.step()
        same([before - table.weight.detach()], [torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [0.0, 0.0]])])
        print("rank", rank, "right", flush=True)
    """
    ended = job(any_mpi, 2, program)
    assert len(ended.lines("rank")) == 2, ended.output


def test_torch_tensors_are_averaged_like_arrays(job, any_mpi):
    pytest.importorskip("torch")
    program = """
        import torch, dl_comm
        torch.set_num_threads(1)
        dl_comm.init()
        rank = dl_comm.get_rank()
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32):
            tensor = torch.full((4, 5), 2 * rank, dtype=dtype)
            mean, none = dl_comm.gradients([tensor.t(), None])
            assert none is None and mean.dtype == dtype and mean.shape == (5, 4) and bool((mean == 1).all())
            assert bool((tensor == 2 * rank).all())
            dl_comm.broadcast([tensor], 1)
            assert bool((tensor == 2).all())
        print("rank", rank, "right", flush=True)
    """
    ended = job(any_mpi, 2, program)
    assert len(ended.lines("rank")) == 2, ended.output


def test_arrays_that_are_not_contiguous_or_writable_are_copied_or_refused():
    program = """if True:
        import warnings
        import numpy as np, dl_comm
        dl_comm.init()
        array = np.arange(12.0).reshape(3, 4).T
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            dl_comm.broadcast([array], 0)
        assert len(said) == 1 and "not contiguous" in str(said[0].message)
        frozen = np.ones(3)
        frozen.flags.writeable = False
        try:
            dl_comm.broadcast([frozen], 0)
        except dl_comm.CommError as error:
            assert "read-only" in str(error)
            print("right")
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("right\n", "")


def test_a_team_that_was_used_before_init_is_made_anew_with_its_threads_and_precision(job, any_mpi):
    program = """
        import numpy as np, dl_comm
        dl_comm.init_mpi()
        rank = dl_comm.get_rank()
        large = [1e8, 1.0, -1e8]
        assert dl_comm.average(np.full(3, float(rank)))[0] == 1
        assert dl_comm.gradients([np.full(3, large[rank], "f4")])[0][0] == 0
        dl_comm.create_team(0, 1, 1)
        assert np.isclose(dl_comm.gradients([np.full(3, large[rank], "f4")])[0][0], 1 / 3)
        dl_comm.init(2, 2, 1000)
        dl_comm.init(2, 2, 1000)
        dl_comm.barrier()
        print("rank", rank, "right", flush=True)
    """
    ended = job(any_mpi, 3, program)
    assert (len(ended.lines("rank")), ended.code) == (3, 0), ended.output


def test_arrays_of_another_byte_order_and_of_types_that_are_only_moved_get_the_right_values(job, any_mpi):
    program = """
        import warnings
        import numpy as np, dl_comm
        dl_comm.init()
        rank = dl_comm.get_rank()
        warnings.simplefilter("ignore")
        other = np.full((2, 3), 2.0 * rank, np.dtype("f4").newbyteorder())
        assert np.all(dl_comm.gradients([other])[0] == 1)
        dl_comm.average(other)
        assert np.all(other == 1) and not other.dtype.isnative
        for dtype in ("bool", "u2", "u4", "c16", "S3", "M8[s]"):
            array = np.full((2, 3), rank, "i8").astype(dtype)
            dl_comm.broadcast([array], 1)
            assert np.array_equal(array, np.full((2, 3), 1, "i8").astype(dtype)), array
        try:
            dl_comm.broadcast([np.zeros(3, "u2" if rank else "c16")], 0)
        except dl_comm.CommError as error:
            assert "(3,) complex128 as" in str(error) and "(3,) uint16 as" in str(error), error
            print("rank", rank, "right", flush=True)
    """
    ended = job(any_mpi, 2, program)
    assert (len(ended.lines("rank")), ended.code) == (2, 0), ended.output


def test_teams_and_phases_that_differ_between_ranks_are_refused_and_shown(job, any_mpi):
    program = """
        import numpy as np, dl_comm
        dl_comm.init()
        rank = dl_comm.get_rank()
        for arguments, said in (((5, 1 + rank), "1 threads at precision level 0 on rank 0 but 2"),
                                ((6, 1, rank), "1 threads at precision level 0 on rank 0 but 1 threads at precision")):
            try:
                dl_comm.create_team(*arguments)
            except dl_comm.CommError as error:
                assert said in str(error), error
                print("rank", rank, "refused", flush=True)
        dl_comm.config_team(0, ksteps=2 if rank else 9, max_steps=9)
        for step in range(3):
            try:
                assert dl_comm.gradients([np.full(3, float(step))])[0][0] == step
            except dl_comm.CommError as error:
                assert step == 2 and "(3,) [100% of the call before] float64" in str(error), error
                print("rank", rank, "refused", flush=True)
    """
    ended = job(any_mpi, 2, program)
    assert (len(ended.lines("rank")), ended.code) == (6, 0), ended.output
