"""For all tests: ranks share a machine's single GPU, and the report ends with what was seen over several machines."""

import os
import signal

import pytest

os.environ.setdefault("DLRUN_SHARE_GPUS", "1")  # jobs of several ranks start nevertheless
# UCX, in MPI libraries, looks at every network interface, for ranks of one machine, too. One of another test's that
# vanishes is told among what ranks print, or is the end of MPI_Init. Tests of several machines take this back.
os.environ.setdefault("UCX_LOG_FILE", "stderr")
os.environ.setdefault("UCX_NET_DEVICES", "lo")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell has it for what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the programs that tests press Ctrl-C at inherit it
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # likewise under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--wide``."""
    parser.addoption("--wide", action="store_true", help="run what is marked wide, and only that")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``wide("this", "or that")``, of cases those with such words; by --wide all else.

    A test that is named by its ``file::name`` runs.
    """
    named = tuple(argument for argument in config.args if "::" in argument)
    chosen = [_is_wide(item) == config.getoption("wide") or item.nodeid.startswith(named) for item in items]
    config.hook.pytest_deselected(items=[item for item, runs in zip(items, chosen, strict=True) if not runs])
    items[:] = [item for item, runs in zip(items, chosen, strict=True) if runs]


def _is_wide(item: pytest.Item) -> bool:
    marks = list(item.iter_markers("wide"))
    case = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
    return any(not mark.args or any(word in case for word in mark.args) for mark in marks)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show how every failure ended, under every launcher over several machines."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    rows = [value for report in reports for name, value in report.user_properties if name == "end"]
    if rows:
        terminalreporter.section("how jobs over several machines ended")
        terminalreporter.line("| event | started by | exit code | seconds | processes left | said |")
        terminalreporter.line("|---|---|---|---|---|---|")
        for row in sorted(rows):
            terminalreporter.line(str(row))
