"""``dlrun port``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dlrun.cli.paths import NewFile

if TYPE_CHECKING:
    from dlrun.port import Options, Ported


def _decay(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    from dlrun.port.facts import Decay

    try:
        return Decay.read(text) if text is not None else None
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no list of rising epochs with a factor below 1, as in 30,60,80:0.1."
        ) from None


_RATE = ("lr_scaling", "warmup_steps", "warmup_epochs", "lr_decay", "lars")


@click.command()
@click.argument("script", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="Where to write the ported script, - to print it; default: SCRIPT_dist.py beside it.",
)
@click.option(
    "--out-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the script and the local modules it imports here, ported where they need it.",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier port even if it was edited since.")
@click.option("--diff", is_flag=True, help="Show what would change, and write nothing.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if the output would change.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
@click.option(
    "--observe",
    "observing",
    is_flag=True,
    help="Run the script a few steps first (with ARGS), to see what reading cannot.",
)
@click.option(
    "--observe-steps",
    type=click.IntRange(min=1),
    default=3,
    metavar="K",
    show_default=True,
    help="Stop that run after K optimizer steps.",
)
@click.option(
    "--html", type=NewFile(), metavar="FILE", help="Write a page with both versions side by side and the reasons."
)
@click.option("--explain", metavar="NAME", help="Tell of a step or a doubt what it is and, of SCRIPT, where.")
@click.option(
    "--from",
    "origin",
    type=click.Choice(["horovod", "ddl"]),
    default=None,
    help="The script uses Horovod or IBM DDL: translate its calls to dl_comm.",
)
@click.option(
    "--batch",
    type=click.Choice(["local", "global"]),
    default="local",
    show_default=True,
    help="What stays: each rank's batch (the global one grows n-fold), or the global batch (each rank takes "
    "1/n; rate and steps stay).",
)
@click.option(
    "--evaluate",
    type=click.Choice(["shared", "whole"]),
    default="shared",
    show_default=True,
    help="Whether each rank evaluates 1/n of the test batches, where all numbers come out as the serial script's, or "
    "all of them.",
)
@click.option(
    "--lr-scaling",
    type=click.Choice(["linear", "sqrt", "none"]),
    default="linear",
    show_default=True,
    help="How the learning rate follows the number of ranks.",
)
@click.option(
    "--warmup-steps",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Ramp the rate up over the first N steps.",
)
@click.option(
    "--warmup-epochs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Ramp the rate up over the first N epochs.",
)
@click.option(
    "--lr-decay",
    callback=_decay,
    metavar="E,...:F",
    help="Multiply the rate by F at the epochs E, as in 30,60,80:0.1; on one rank it stays.",
)
@click.option("--lars", is_flag=True, help="Give each layer of an SGD a rate of its own (LARS), for large batches.")
@click.option("--verify", "proving", is_flag=True, help="Prove the port afterwards: dlrun verify, on 2 ranks.")
@click.argument("args", nargs=-1)
def command(
    script: Path | None,
    output: Path | None,
    out_dir: Path | None,
    overwrite: bool,
    diff: bool,
    check: bool,
    as_json: bool,
    observing: bool,
    observe_steps: int,
    html: Path | None,
    explain: str | None,
    proving: bool,
    args: tuple[str, ...],
    **chosen: Any,
) -> None:
    """Turn a serial training script into a data-parallel one.

    SCRIPT is one for PyTorch, Keras or TensorFlow, or a notebook; the port is SCRIPT_dist.py.

    \b
      dlrun port train.py                     writes train_dist.py, and says what was done and why
      dlrun port train.py --out-dir DIR       ports the local modules that it imports, too
      dlrun port --diff train.py              shows the changes only
      dlrun port --observe train.py -- ARGS   looks at a few steps of the script first
      dlrun port --verify train.py -- ARGS    proves the port with a few steps of both
    """
    from dlrun.port.files import alone, port_file, port_tree, read_and_port
    from dlrun.port.observing import observe
    from dlrun.progress import working

    if script is None:
        _told_alone(explain)
        return
    if out_dir and output:
        raise click.UsageError("--out-dir and -o exclude each other: a folder, or one file.")
    if args and not (observing or proving):
        raise click.UsageError(f"{' '.join(args)}: the script's arguments go with --observe or --verify, which run it.")
    printing = output == Path("-")
    if printing and (check or as_json or proving):
        raise click.UsageError("-o - prints the port; --check, --json and --verify need a file, or no -o.")
    if script.suffix == ".ipynb" and (observing or proving):
        hint = f"Make a script of it, `jupyter nbconvert --to script {script}`, and port that."
        raise click.UsageError(f"--observe and --verify run the serial script; {script} is a notebook. {hint}")
    options = _options(chosen)
    with working(f"watching the first steps of {script}"):
        seen = observe(script, args, observe_steps) if observing else None
    if diff or check or explain:
        ported = read_and_port(script, options, seen)
    elif printing:
        ported = alone(read_and_port(script, options, seen))
    else:
        with working(f"reading {script}"):
            ported = (
                port_tree(script, out_dir, options, seen, overwrite)
                if out_dir
                else port_file(script, output, options, seen, overwrite)
            )
    if html:
        from dlrun.port.page import page

        html.write_text(page(ported), encoding="utf-8", errors="replace")
    if explain:
        click.echo(_explained(ported, explain), nl=False)
    elif as_json:
        click.echo(json.dumps(ported.as_json(), indent=2))
    elif diff:
        click.echo(ported.diff(sys.stdout.isatty()), nl=False)
    elif printing:
        _printed(ported, html)
    elif ported.path:
        _told(ported, html)
        if proving:
            from dlrun.cli.verify import prove
            from dlrun.verify import Job

            raise SystemExit(prove(Job(script, ported.path, args)))
    if check:
        _checked(ported, script, output, out_dir)


def _options(chosen: dict[str, Any]) -> Options:
    """Return the options of a port; raises click.UsageError for those that exclude each other."""
    from dlrun.port import Options

    source = click.get_current_context().get_parameter_source
    given = [f"--{name.replace('_', '-')}" for name in _RATE if source(name) is ParameterSource.COMMANDLINE]
    if given and chosen["batch"] == "global":
        raise click.UsageError(f"{', '.join(given)} go with --batch local: --batch global keeps the rate.")
    if given and chosen["origin"]:
        raise click.UsageError(f"{', '.join(given)}: not with --from, which leaves the rate as the script has it.")
    if chosen["warmup_steps"] and chosen["warmup_epochs"]:
        raise click.UsageError("--warmup-steps and --warmup-epochs exclude each other.")
    return Options(**{**chosen, "origin": chosen["origin"] or ""})


def _told(ported: Ported, html: Path | None) -> None:
    """Say what was written, and what comes next."""
    click.echo(ported.report(sys.stdout.isatty()), nl=False)
    click.echo(f"wrote {ported.path}" + (f" and {html}" if html else ""))
    if not any(d.step == "finish" for d in ported.doubts):
        click.echo(f"next: {ported.start}")


def _printed(ported: Ported, html: Path | None) -> None:
    """Print the port, and say on stderr what was done."""
    from dlrun.port.files import marked

    sys.stdout.buffer.write(marked(ported.script_part))
    sys.stdout.flush()
    click.echo(ported.report(sys.stderr.isatty()), nl=False, err=True)
    if html:
        click.echo(f"wrote {html}", err=True)


def _checked(ported: Ported, script: Path, output: Path | None, out_dir: Path | None) -> None:
    """Say whether what is on disk is what a port would write; raises SystemExit(1) where it is not."""
    from dlrun.port.files import alone, default_output, script_name, up_to_date

    inside = ported.script.home.inside
    target = out_dir / inside / script_name(script) if out_dir else output or default_output(script)
    modules = ported.modules if out_dir else alone(ported).modules
    files = [(ported.script_part, target), *((m, (out_dir or Path()) / m.file) for m in modules)]
    for part, file in files:
        if not up_to_date(part, file):
            click.echo(f"{file} would change.", err=True)
            raise SystemExit(1)
    click.echo(f"{target} is up to date.", err=True)


def _told_alone(name: str | None) -> None:
    """Say what a doubt is where no script is named; raises click.UsageError for anything else."""
    from dlrun.port.report import explained

    if name is None:
        raise click.UsageError("Missing argument 'SCRIPT'.")
    if name not in (known := explained()):
        raise click.BadParameter(
            f"{name!r} is no doubt; there are {', '.join(known)}. A step needs the script.", param_hint="--explain"
        )
    click.echo(f"{name}\n\n{known[name]}")


def _explained(ported: Ported, name: str) -> str:
    """Return what ``--explain name`` prints; raises click.BadParameter for what is no step and no doubt."""
    from dlrun.port.report import explained
    from dlrun.port.steps import GRID, STEPS

    if name in (doubts := explained()):
        return ported.explain_doubt(name)
    steps = {step.name: step for step in STEPS if step.name in GRID[ported.framework]}
    if name not in steps:
        known = ", ".join([*steps, *doubts])
        raise click.BadParameter(f"{name!r} is no step and no doubt; there are {known}.", param_hint="--explain")
    return ported.explain(name, steps[name].meaning, GRID[ported.framework][name].__doc__ or "")
