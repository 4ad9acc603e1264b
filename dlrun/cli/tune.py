"""``dlrun tune``."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlrun.cli.paths import NewFile
from dlrun.cli.values import finite, pattern

if TYPE_CHECKING:
    from dlrun.bench.cases import Case
    from dlrun.launch import LaunchPlan
    from dlrun.progress import Progress
    from dlrun.tune.report import Measure
    from dlrun.tune.search import Goal, Outcome, Trial
    from dlrun.tune.space import Settings, Space
    from dlrun.tune.steps import Look
    from dlrun.tune.trial import Job


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "--ranks", type=int, required=True, help="How many ranks.")
@click.option("--model", default="", help="Tune on the gradient sizes of resnet50, gpt2 or cnn; no script is run.")
@click.option(
    "--sizes-file",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="The same, with the sizes that this file lists.",
)
@click.option("--dtype", default="float32", show_default=True, help="Element type of --model and --sizes-file.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where the arrays of --model and --sizes-file lie.",
)
@click.option("--set", "chosen", multiple=True, metavar="NAME[=V1,V2]", help="Search only this variable of dl_comm.")
@click.option("--param", "params", multiple=True, metavar="NAME=V1,V2", help="Sweep this option of SCRIPT.")
@click.option(
    "--metric",
    default="",
    callback=pattern,
    metavar="PATTERN",
    help="Regular expression whose first group is the number in SCRIPT's output.",
)
@click.option(
    "--take", type=click.Choice(["median", "last", "best"]), help="Which of its matches counts; last unless said."
)
@click.option("--minimize", is_flag=True, help="A lower --metric is better.")
@click.option("--budget", default="5m", show_default=True, help="Time for all trials: 90s, 5m, 1h.")
@click.option(
    "--seconds",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    callback=finite,
    help="Averaging time of one trial; steps take 3 times that.",
)
@click.option("--backend", default="auto", show_default=True, help="Launcher, as in dlrun launch.")
@click.option("--per-node", type=int, help="Ranks on each node.")
@click.option(
    "--journal", type=NewFile(), help="Keep the trials here, as JSON lines: the same command goes on from them."
)
@click.option("--validate", is_flag=True, help="Set the profile that fits against the default, alternately.")
@click.option("--profile/--no-profile", default=True, help="Write what is a gain as a profile for dlrun launch.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT names a module, as in python -m.")
@click.argument("script", metavar="[SCRIPT [ARGS]...]", nargs=-1, type=click.UNPROCESSED)
def command(ranks: int, budget: str, validate: bool, profile: bool, script: tuple[str, ...], **options: Any) -> None:
    """Find the settings of dl_comm that average gradients fast.

    What is a gain is kept, and dlrun launch uses it. Each run of SCRIPT works in a folder of its own that looks like
    this one, where a Python script leaves your files as they are.

    \b
      dlrun tune -n 4 --model resnet50              on the gradient sizes of a model
      dlrun tune -n 4 train_dist.py                 on a script's own gradients and steps
      dlrun tune -n 4 --param lr=0.1,0.2 --metric 'accuracy ([0-9.]+)' train_dist.py
    """
    from dlrun.bench.run import PROGRAMS
    from dlrun.errors import StoppedError
    from dlrun.launch import LaunchPlan, prepare
    from dlrun.launch.plan import program
    from dlrun.progress import Progress
    from dlrun.tune.journal import Journal
    from dlrun.tune.report import Measure
    from dlrun.tune.search import Goal, propose, propose_pair
    from dlrun.tune.space import plugin_axes
    from dlrun.tune.trial import carry_out

    module = options.pop("module")
    if bool(script) + bool(options["model"]) + bool(options["sizes_file"]) != 1:
        raise click.UsageError("give one of SCRIPT, --model and --sizes-file")
    if module and not script:
        raise click.UsageError("-m needs a SCRIPT")
    words = program(*(script or (str(PROGRAMS / "allreduce.py"),)), module=module)
    plan = LaunchPlan(
        words, ranks, module, options["backend"], per_node=options["per_node"], tuned=False, sandboxed=bool(script)
    )
    settled, _ = prepare(plan)
    prints = bool(options["metric"] or options["params"])  # then the script's own words are compared, not its steps
    goal = Goal(_seconds(budget), prints and not options["minimize"])
    plugin_axes(settled.nodes, True, options["chosen"])  # a wrong one is told before the script is looked at
    name = plan.name if script else options["model"] or options["sizes_file"].stem
    path = options["journal"] or Path(f"dlrun-tune-{name}-n{ranks}{'-validate' if validate else ''}.jsonl")
    seen = _look(plan, path) if script and not prints else None
    space, best = _space(name, settled, seen, validate, options)
    job = _job(space, plan, script, seen, options)
    stage = "validate" if validate else "search"
    journal = Journal(path, _head(settled, space, seen, options, script=" ".join(script), stage=stage))
    if journal.outcomes:
        click.echo(f"dlrun: going on after the {len(journal.outcomes)} trials in {journal.path}", err=True)

    def next_trial(outcomes: Sequence[Outcome]) -> Trial | None:
        return propose_pair(space, best, outcomes, goal) if best else propose(space, outcomes, goal)

    with Progress(goal.budget) as progress:
        cut = carry_out(job, journal, next_trial, _teller(progress, goal))
    if not journal.outcomes:
        raise StoppedError("the first trial", cut)
    titles = (f"averaging the gradients of {name}", f"a step of {script[0]}" if seen else "")
    measure = Measure(options["metric"] or ("samples/s" if prints else ""), *titles)
    _show(space, journal, goal, measure, bool(cut))
    if profile and not validate:
        _keep(space, journal, goal, name, settled)


def _look(plan: LaunchPlan, path: Path) -> Look:
    """What the script's first steps show; what they showed when the search in the journal at `path` began."""
    from dlrun.tune.journal import head_of
    from dlrun.tune.steps import Look, look

    known = head_of(path).get("seen")
    if known:
        return Look(**{**known, "counts": tuple(known["counts"])})
    click.echo(f"dlrun: looking at the first steps of {plan.program[0]}", err=True)
    seen = look(plan)
    click.echo(f"dlrun: {plan.program[0]} {seen}", err=True)
    return seen


def _head(settled: LaunchPlan, space: Space, seen: Look | None, options: dict[str, Any], **more: str) -> dict[str, Any]:
    """What makes a journal that of this search."""
    from dlrun.launch.profile import key_of

    said = {k: str(v) for k, v in options.items() if k not in ("journal", "backend", "params", "chosen") and v}
    axes = {axis.name: axis.values for axis in space.axes}
    return {"key": key_of(settled)._asdict(), **said, **more, "axes": axes, "seen": asdict(seen) if seen else None}


def _space(
    name: str, settled: LaunchPlan, seen: Look | None, validate: bool, options: dict[str, Any]
) -> tuple[Space, Settings | None]:
    """What is searched, and with --validate the one thing that is compared with the default."""
    import os

    from dlrun.errors import DlrunError
    from dlrun.launch.profile import choose, folder, key_of, read
    from dlrun.tune.space import Axis, Space, axis_from_text, plugin_axes

    if validate:
        settings, line = choose(read(folder(os.environ)), key_of(settled), {}, name)
        if not settings:
            raise DlrunError(line or "there is no profile to validate", "find one first: dlrun tune without --validate")
        click.echo(f"dlrun: {line}", err=True)
        return Space(tuple(Axis(variable, (value,)) for variable, value in settings.items())), tuple(settings.items())
    if options["params"] and (options["model"] or options["sizes_file"]):
        raise click.UsageError("--param needs a SCRIPT")
    axes = tuple(axis_from_text(text, "option") for text in options["params"])
    if options["chosen"] or not axes:
        script = not options["model"] and not options["sizes_file"]
        gpu = bool(key_of(settled).gpu)
        on_gpu = (gpu and script) or options["device"] == "cuda"
        axes += plugin_axes(settled.nodes, seen.overlap if seen else script, options["chosen"], on_gpu)
        if script and not gpu and not options["chosen"]:
            click.echo("dlrun: no GPU is here: DL_COMM_NUM_CUDA_STREAMS is not swept", err=True)
    return Space(axes), None


def _job(space: Space, plan: LaunchPlan, script: tuple[str, ...], seen: Look | None, options: dict[str, Any]) -> Job:
    from dlrun.bench.cases import model_case
    from dlrun.tune.steps import job_of
    from dlrun.tune.trial import Metric, ModelJob, ScriptJob

    if seen:
        return job_of(space, plan, seen, options["seconds"], plan.name)
    if script:
        metric = Metric(maximize=not options["minimize"])
        if options["metric"]:
            metric = Metric(options["metric"], options["take"] or "last", not options["minimize"])
        return ScriptJob(space, plan, metric)
    case = model_case(options["model"]) if options["model"] else _case_in(options["sizes_file"])
    return ModelJob(space, plan, case, options["dtype"], options["seconds"], device=options["device"])


def _case_in(path: Path) -> Case:
    from dlrun import textfile
    from dlrun.bench.cases import Case
    from dlrun.errors import DlrunError

    words = re.findall(r"[^\s,\[\]]+", textfile.read(path))
    if not words or not all(word.isdigit() and int(word) for word in words):
        raise DlrunError(f"{path} holds no list of counts", "one number of elements per gradient: 1000, 2048000")
    return Case(path.stem, tuple(int(word) for word in words))


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|)", text.strip())
    if not match:
        raise click.BadParameter(f"'{text}' is no time; write 90s, 5m or 1h", param_hint="--budget")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}[match[2]]


def _teller(progress: Progress, goal: Goal) -> Any:
    from dlrun.tune.space import as_text

    def tell(trial: Trial, outcomes: Sequence[Outcome]) -> None:
        spent = sum(o.cost for o in outcomes)
        what = f"of the budget, {trial.stage} {trial.turn + 1}: {as_text(trial.settings)}"
        progress.at(min(spent, goal.budget), what)

    return tell


def _show(space: Space, journal: Any, goal: Goal, measure: Measure, cut: bool) -> None:
    from dlrun.errors import DlrunError
    from dlrun.tune.report import draw, sentence, tables

    click.echo(tables(space, journal.outcomes, goal, measure) + "\n")
    click.echo(sentence(space, journal.outcomes, goal))
    if cut:
        click.echo(f"interrupted: this is the best so far; the same command goes on from {journal.path}")
    try:
        written = [journal.path, *draw(space, journal.outcomes, goal, journal.path, measure)]
    except DlrunError as error:
        written = [journal.path]
        error.show()
    click.echo("wrote " + ", ".join(str(path) for path in written), err=True)


def _keep(space: Space, journal: Any, goal: Goal, name: str, settled: LaunchPlan) -> None:
    """Write the profile, where there is a gain and it lies in dl_comm's variables."""
    import os

    from dlrun.launch.profile import Profile, folder, key_of, write
    from dlrun.tune.search import judge

    verdict = judge(space, journal.outcomes, goal)
    if verdict.kind != "gain" or verdict.challenger is None:
        return
    settings = tuple(space.environment(verdict.challenger).items())
    if settings:
        today = time.strftime("%Y-%m-%d")
        path = write(Profile(name, today, verdict.gain, key_of(settled), settings), folder(os.environ))
        click.echo(f"dlrun launch -n {settled.ranks} uses it from now on: {path}")
