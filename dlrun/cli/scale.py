"""``dlrun scale``."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import click

from dlrun.cli.paths import NewFolder
from dlrun.cli.values import counts, finite, pattern


@click.command()
@click.option(
    "-n", "ranks", callback=counts, metavar="N,...", default="1,2,4", show_default=True, help="Numbers of ranks."
)
@click.option(
    "--divide",
    "divided",
    multiple=True,
    metavar="NAME=VALUE",
    help="Strong scaling too: the value of this option on one rank, to be divided by the ranks.",
)
@click.option(
    "--repeats",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="How often each run is made.",
)
@click.option(
    "--target",
    type=float,
    callback=finite,
    help="Time to this accuracy; the best that every run reached unless said.",
)
@click.option(
    "--rate",
    callback=pattern,
    metavar="PATTERN",
    help="Regular expression whose first group is the rate, in samples per second over all ranks; '... samples/s' "
    "unless said, or epochs/s.",
)
@click.option(
    "--accuracy", callback=pattern, metavar="PATTERN", help="The same of the accuracy; 'accuracy ...' unless said."
)
@click.option(
    "--loss", callback=pattern, metavar="PATTERN", help="The same of the loss on that line; 'loss ...' unless said."
)
@click.option("--backend", default="auto", show_default=True, help="Launcher, as in dlrun launch.")
@click.option("--per-node", type=int, help="Ranks on each node.")
@click.option(
    "--out",
    type=NewFolder(),
    default="dlrun-scale",
    show_default=True,
    metavar="FOLDER",
    help="Where the results, the plots and a page with all of them go.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT names a module, as in python -m.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    script: str,
    args: tuple[str, ...],
    ranks: tuple[int, ...],
    divided: tuple[str, ...],
    repeats: int,
    target: float | None,
    rate: str | None,
    accuracy: str | None,
    loss: str | None,
    backend: str,
    per_node: int | None,
    out: Path,
    as_json: bool,
    module: bool,
) -> None:
    """Run a script on 1, 2 and 4 ranks, and say how it scales.

    Rates, efficiency, time to accuracy, and what to expect of more nodes. The script prints its rate over all ranks,
    such as '812 samples/s'; else its epochs are timed, by lines such as 'epoch 3: ...'. Each run works in a folder of
    its own that looks like this one: none goes on from another's, and no Python script overwrites your files.

    \b
      dlrun scale train_dist.py -n 1,2,4 -- --epochs 5
      dlrun scale train_dist.py -n 1,2 --divide batch-size=64 --divide lr=0.05
    """
    from dlrun.bench.run import usable_cores
    from dlrun.errors import DlrunError
    from dlrun.launch import LaunchPlan, prepare
    from dlrun.progress import Progress
    from dlrun.scale.reading import ACCURACY, LOSS, RATE, Patterns
    from dlrun.scale.report import measured, predicted, write
    from dlrun.scale.result import Study, common_target, to_json
    from dlrun.scale.run import Experiment, run_all

    patterns = Patterns(rate or RATE, accuracy or ACCURACY, loss or LOSS)
    plan = LaunchPlan((script, *args), max(ranks), module=module, backend=backend, per_node=per_node, sandboxed=True)
    cores = usable_cores() * prepare(plan)[0].nodes
    # A rank alone must not compute with more threads than one of many, or it is another program that is compared.
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // max(ranks)))
    plan = plan._replace(env=(("OMP_NUM_THREADS", threads),))
    experiment = Experiment(plan, ranks, repeats, tuple(_pair(text) for text in divided), patterns)
    out.mkdir(parents=True, exist_ok=True)
    with Progress(len(experiment.todo())) as progress:
        runs, failed = run_all(experiment, progress.at)
    study = Study(script, cores, threads, tuple(runs))
    target = common_target(study) if target is None else target
    result = to_json(study, target)
    (out / "scale.json").write_text(json.dumps(result, indent=1) + "\n")
    written, missing = write(study, target, out, shlex.join(["dlrun", *sys.argv[1:]]))
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo("\n\n".join(str(table) for table in (measured(study, target), *predicted(study))) + "\n")
    if study.unit != "samples/s":
        click.echo(f"dlrun: the script prints no samples/s: its rates are {study.unit}, evaluation included", err=True)
    if len(runs) < len(experiment.modes) * len(ranks) * repeats:
        why = "a run failed" if failed else "interrupted"
        click.echo(f"{why}: the tables hold the runs that were done", err=True)
    if missing:
        DlrunError(missing).show()
    if wrote := dict.fromkeys(run.files for run in runs if run.files):
        click.echo(f"what the runs themselves wrote is in {', '.join(wrote)}", err=True)
    click.echo(f"wrote {out / 'scale.json'}, " + ", ".join(str(path) for path in written), err=True)
    if failed:
        raise failed


def _pair(text: str) -> tuple[str, str]:
    from dlrun.scale.run import share

    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise click.BadParameter(f"'{text}' has no value; write batch-size=64", param_hint="--divide")
    share(value, 1)
    return name.lstrip("-"), value
