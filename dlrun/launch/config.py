"""``dlrun.yaml``: a project's or a user's own defaults for the options of ``dlrun launch``.

::

    launch:
      per-node: 4
      cores: 8
      env:
        NCCL_DEBUG: WARN

The project's lies where the job is started; the user's in ``$XDG_CONFIG_HOME/dlrun`` (``~/.config/dlrun``). The command
line comes before the project's file, and that before the user's.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlrun import textfile
from dlrun.errors import DlrunError

if TYPE_CHECKING:
    from yaml.nodes import Node

# What an option takes: "count", "seconds", "yes or no", "text", "variables", or one of some words: "this or that".
Kinds = Mapping[str, str]
_RUN_BY_DLRUN = ("mpiexec",)  # options that name a program
_FORM = "it looks like this:\n  launch:\n    ranks: 64"


def files(env: Mapping[str, str], cwd: Path) -> list[Path]:
    """Return the files that are there, the user's first: later ones override. HOME may be another user's (sudo -u)."""
    both = (user_file(env), cwd / "dlrun.yaml")
    return [path for path in both if os.path.isfile(path)]  # noqa: PTH113 - Path's raises where it may not look


def user_file(env: Mapping[str, str]) -> Path:
    """Return where the user's own file lies, or would."""
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/"), ".config"))
    return home / "dlrun/dlrun.yaml"


def written(options: Mapping[str, Any]) -> str:
    """Return the file that holds these options, by the names that it uses; ``env`` is a list of NAME=VALUE."""
    import yaml

    values = {name: value for name, value in options.items() if name != "env"}
    if options.get("env"):
        values["env"] = {name: value for name, _, value in (text.partition("=") for text in options["env"])}
    head = "# Defaults of dlrun launch; its command line comes before them. dlrun launch --help lists the options.\n"
    return head + str(yaml.safe_dump({"launch": values or None}, sort_keys=False))


def env_file(path: Path) -> tuple[str, ...]:
    """Return the variables in a file of NAME=VALUE lines, as NAME=VALUE.

    Empty lines and those that begin with # are passed over, an ``export`` before a name, and quotes around a value;
    nothing is expanded. Raises :class:`DlrunError` that names the line for anything else.
    """
    found = []
    for number, line in enumerate(textfile.read(path).splitlines(), 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not re.fullmatch(r"[A-Za-z_][\w.]*", name):
            raise DlrunError(f"{path}, line {number}: this is no NAME=VALUE line: {line.strip()}")
        if value[:1] in ("'", '"'):
            if len(value) < 2 or value[-1] != value[0]:
                raise DlrunError(f"{path}, line {number}: the value of {name} has one quote alone")
            value = value[1:-1]
        found.append(f"{name}={value}")
    return tuple(found)


def defaults(path: Path, kinds: Kinds) -> dict[str, Any]:
    """Return the defaults that the file holds, by option name with underscores; ``kinds`` are the options there are.

    Raises :class:`DlrunError` that names the line for what is no YAML, no option, or no value for it.
    """
    import yaml

    try:
        root = yaml.compose(textfile.read(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise DlrunError(f"{path}{line}: {getattr(error, 'problem', None) or 'no YAML'}", _FORM) from error
    found: dict[str, Any] = {}
    for section, options in _pairs(root, path):
        if section.value != "launch":
            raise DlrunError(f"{_line(path, section)}: {section.value} is no section", "there is one: launch")
        for option, value in _pairs(options, path):
            name = option.value.replace("-", "_")
            name = name if name in kinds else f"{name}_"  # Python has a word for --as and a module for --time
            if name not in kinds:
                import difflib

                close = difflib.get_close_matches(name, kinds, n=1)
                named = close[0].rstrip("_").replace("_", "-") if close else ""
                hint = f"did you mean {named}?" if close else "dlrun launch --help lists them"
                raise DlrunError(f"{_line(path, option)}: {option.value} is no option of dlrun launch", hint)
            found[name] = _value(path, option, value, kinds[name])
            if name in _RUN_BY_DLRUN and (others := _of_others(path)):
                why = f"{option.value} names a program to run, and {others}"
                raise DlrunError(f"{_line(path, option)}: {why}", f"if that is right, say it: --{option.value}")
    return found


def _of_others(path: Path) -> str:
    """Return why a file may not be this user's own words, or those of root; "" where it is."""
    for place, name in ((path, "the file"), (path.absolute().parent, "the folder")):
        of = place.stat()
        if of.st_uid not in (0, os.getuid()):
            return f"{name} is another user's"
        if of.st_mode & stat.S_IWOTH and not of.st_mode & stat.S_ISVTX:
            return f"anybody can write to {name}"
    return ""


def _value(path: Path, option: Node, node: Node, kind: str) -> Any:
    import yaml

    if kind == "variables" and isinstance(node, yaml.MappingNode):
        for name, text in node.value:
            if not isinstance(text, yaml.ScalarNode):
                raise DlrunError(f"{_line(path, text)}: {name.value} is no text", 'put it in quotes: NAME: "1,2"')
        return [f"{name.value}={text.value}" for name, text in node.value]  # as they are written: true, 007
    try:
        value = yaml.constructor.SafeConstructor().construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        raise DlrunError(f"{_line(path, node)}: {option.value} has a value that is none", _FORM) from error
    if isinstance(node, yaml.ScalarNode) and kind == "text" and type(value) in (str, int):
        return node.value  # as it is written: YAML would read 2:00:00 as a number
    fits = {
        "count": isinstance(value, int) and not isinstance(value, bool),
        "seconds": isinstance(value, (int, float)) and not isinstance(value, bool),
        "yes or no": isinstance(value, bool),
    }
    if not fits.get(kind, value in kind.split(" or ")):
        wanted = {
            "count": "a whole number",
            "seconds": "a number",
            "yes or no": "true or false",
            "text": "text",
            "variables": "NAME: VALUE lines",
        }.get(kind, kind)
        said = "nothing" if value is None else repr(value)
        raise DlrunError(f"{_line(path, node)}: {option.value} is {said}, not {wanted}")
    return value


def _pairs(node: Node | None, path: Path) -> list[tuple[Node, Node]]:
    import yaml

    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
        return []  # a section without a line sets nothing
    if not isinstance(node, yaml.MappingNode):
        raise DlrunError(f"{_line(path, node)}: these are no NAME: VALUE lines", _FORM)
    return list(node.value)


def _line(path: Path, node: Node) -> str:
    return f"{path}, line {node.start_mark.line + 1}"
