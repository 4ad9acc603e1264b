"""``dlrun doctor``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(as_json: bool) -> None:
    """Say what works here, what does not, and what to do.

    Looks at this machine and this environment.
    Ends with exit code 1 when something is bad.
    """
    from dlrun.doctor import examine
    from dlrun.progress import working

    findings, coming = [], examine()
    while True:
        with working("looking at this machine"):
            finding = next(coming, None)
        if finding is None:
            break
        findings.append(finding)
        if not as_json:
            mark = {"ok": "ok  ", "note": "-   ", "bad": "BAD "}[finding.state]
            click.echo(f"{mark} {finding.name:<12} {finding.what}")
            if finding.todo:
                click.echo(f"     {'':<12} -> {finding.todo}")
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    sys.exit(1 if any(finding.state == "bad" for finding in findings) else 0)
