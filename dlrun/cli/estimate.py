"""``dlrun estimate``."""

from __future__ import annotations

import json

import click

from dlrun.cli.values import finite


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "--ranks", type=click.IntRange(2), help="How many ranks there are to be.")
@click.option("--per-node", "--ppn", type=click.IntRange(1), help="Ranks on each node; all on one unless said.")
@click.option(
    "--network", "said", default="", metavar="RATE", help="Of a node, as 25GB/s or 200Gbit/s; its cards' unless said."
)
@click.option(
    "--latency",
    type=click.FloatRange(0),
    callback=finite,
    default=20.0,
    show_default=True,
    metavar="US",
    help="Microseconds that a message between nodes takes.",
)
@click.option("--on", "measured_on", type=click.IntRange(2), help="Measure on so many ranks of this machine.")
@click.option(
    "--seconds",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    callback=finite,
    help="Time for averaging the gradients alone.",
)
@click.option("--backend", default="auto", show_default=True, help="Launcher, as in dlrun launch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text, in bytes and seconds.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT names a module, as in python -m.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    ranks: int | None,
    per_node: int | None,
    said: str,
    latency: float,
    measured_on: int | None,
    seconds: float,
    backend: str,
    as_json: bool,
    module: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Say what a script will need and give on many ranks.

    Memory of a rank, bytes that a step exchanges, and how efficient the steps will be. SCRIPT runs for some steps, in a
    folder of its own that looks like this one, and leaves your files as they are. Best on a node like those of the job.

    \b
      dlrun estimate -n 64 --ppn 4 train_dist.py
      dlrun estimate -n 512 --ppn 8 --network 25GB/s train_dist.py --batch-size 64
    """
    if ranks is None:
        raise click.UsageError("How many ranks? -n N, before SCRIPT: what stands behind it is the script's own.")
    from dlrun.estimate.measure import measured, ranks_to_measure, with_profile
    from dlrun.estimate.network import network
    from dlrun.estimate.predict import rows
    from dlrun.estimate.report import text, to_json
    from dlrun.launch import LaunchPlan
    from dlrun.launch.plan import program

    wires = network(said, latency / 1e6)
    on_node = min(per_node or ranks, ranks)
    words = program(script, *args, module=module)
    plan, line = with_profile(LaunchPlan(words, ranks, module, backend, per_node=on_node))
    if line:
        click.echo(f"dlrun: {line}", err=True)

    def stage(what: str) -> None:
        click.echo(f"dlrun: {what}", err=True)

    seen = measured(plan, measured_on or ranks_to_measure(ranks, on_node), on_node, seconds, stage)
    table = rows(seen, wires, ranks, on_node)
    if as_json:
        click.echo(json.dumps(to_json(seen, wires, on_node, table)))
    else:
        click.echo(text(seen, wires, on_node, table))
