"""Lines of a notebook that are no Python: magics, shell commands and questions, as the lines of a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

LEFT_OUT = "# left out: "  # begins the comment that stands for a line which a person has to look at

_SHOWS = re.compile(
    r"^(ls|pwd|cat|head|tail|wc|df|du|free|which|whoami|date|uname|lscpu|nproc|nvidia-smi|tree|file|"
    r"python3? (-V|--version))\b[^|>;&]*$"
)
_INSTALLS = re.compile(r"^(sudo )?((python3? -m )?pip3?|conda|mamba|apt|apt-get|uv) [^|>;&]*$")
_SHELL = ("cp", "mv", "rm", "mkdir", "rmdir", "ls", "cat", "pwd")  # magics that are commands
_NOTHING = (
    *("alias", "autoreload", "autosave", "colors", "config", "debug", "doctest_mode", "gui", "history", "hist"),
    *("load_ext", "logstart", "logstop", "lsmagic", "magic", "matplotlib", "notebook", "pdb", "pinfo", "pinfo2"),
    *("precision", "reload_ext", "rerun", "tensorboard", "tensorflow_version", "unload_ext", "who", "whos", "xmode"),
    *("watermark", "reset", "who_ls", "pprint", "psearch", "quickref", "dirs", "env_list"),
)
_TIMERS = ("time", "prun", "memit", "mprun", "lprun", "snakeviz")  # the statement behind them counts
_SHOWN_CELLS = ("html", "HTML", "javascript", "js", "latex", "markdown", "svg", "SVG", "css")
_TIMED_CELLS = (*_TIMERS, "timeit", "capture", "memray_flamegraph", "scalene")
_SHELLS = ("bash", "sh", "system", "sx", "!")
_OPTIONS = re.compile(r"^(\s*-\w+(\s+(?=-)|\s+(?=[^\s-])|$))+")
_NAMES = re.compile(r"\$(\w+)|\{([^{}]+)\}")


def line(text: str, names: set[str]) -> str | None:
    """Return the Python of one line ``text`` of a notebook, "" for none; None where it is no magic.

    ``names`` are the variables of the notebook, which commands may use.
    """
    if text.startswith(("%", "!", "?")) or _asks(text):
        return _written(text, names)
    taken = re.match(r"^([\w.,\s]+?)=\s*([%!])(.*)$", text)
    if taken is None:
        return None
    if taken[2] == "!":
        return f"{taken[1]}= subprocess.getoutput({_command(taken[3].lstrip('!'), names)}).splitlines()"
    return f"{taken[1]}= None  {LEFT_OUT}%{taken[3]}"


def cell(text: str, names: set[str]) -> str | None:
    """Return the Python of a cell ``text`` that begins with ``%%``; None where it is another one."""
    first, _, body = text.partition("\n")
    found = re.match(r"^%%(\w+|!)\s*(.*)$", first)
    if found is None:
        return None
    name, rest = found[1], found[2].strip()
    if name in _TIMED_CELLS:
        return body
    if name in _SHOWN_CELLS:
        return ""
    if name in _SHELLS or (name == "script" and rest.split(" ")[0] in _SHELLS):
        return f"subprocess.run({_command(body.strip(), set())}, shell=True)\n"
    if name in ("writefile", "file") and rest:
        *options, path = shlex.split(rest)
        return f'with open({path!r}, "{"a" if "-a" in options else "w"}") as file:\n    file.write({_literal(body)})\n'
    return "".join(f"{LEFT_OUT}{each}\n" for each in text.splitlines())


def _asks(text: str) -> bool:
    return bool(re.match(r"^[\w.]+\?{1,2}$", text))


def _written(text: str, names: set[str]) -> str:
    if text.startswith("!"):
        return _shell(text.lstrip("!").strip(), names)
    if not text.startswith("%"):
        return ""
    name, _, rest = text[1:].strip().partition(" ")
    rest = rest.strip()
    if name in ("pip", "conda", "mamba"):
        return f"# {name} {rest}"
    if name in _NOTHING or name == "timeit":
        return ""
    if name in _SHELL:
        return _shell(f"{name} {rest}", names)
    if name in _TIMERS:
        return _OPTIONS.sub("", rest)
    made = _MAKES.get(name)
    return (made(rest, names) if made is not None else "") or f"{LEFT_OUT}{text}"


def _shell(command: str, names: set[str]) -> str:
    """Return what runs ``command``; what only shows something, or changes the installation, is none of a script's."""
    if _INSTALLS.search(command):
        return f"# {command}"
    if _SHOWS.search(command) or not command:
        return ""
    if command.startswith("cd ") and not re.search("[;&|]", command):
        return ""  # in a shell of its own
    return f"subprocess.run({_command(command, names)}, shell=True)"


def _command(command: str, names: set[str]) -> str:
    """Return the literal of ``command``, in which the notebook's variables stand as ``{name}`` or ``$name``."""
    command = command.strip()
    known = [m for m in _NAMES.finditer(command) if (m[1] or re.split(r"[.\[(:!]", m[2])[0]) in names]
    if not known:
        return _literal(command)
    parts, at = [], 0
    for m in known:
        parts.append(command[at : m.start()].replace("{", "{{").replace("}", "}}"))
        parts.append("{" + (m[1] or m[2]) + "}")
        at = m.end()
    parts.append(command[at:].replace("{", "{{").replace("}", "}}"))
    text = "".join(parts)
    return f"f{_literal(text)}" if '"' not in text or "'" not in text else f'f"""{text}"""'


def _literal(text: str) -> str:
    """Return ``text`` as a person writes it: between double quotes, over several lines where it has some."""
    if "\n" in text and '"""' not in text and "\\" not in text and not text.endswith('"'):
        return f'"""{text}"""' if not text.startswith("\n") else f'"""\\\n{text}"""'
    found = repr(text)
    return f'"{found[1:-1]}"' if found.startswith("'") and '"' not in found else found


def _environment(rest: str, names: set[str]) -> str:
    key, _, value = rest.replace("=", " ", 1).partition(" ")
    return f'os.environ["{key}"] = {_command(value, names)}' if key and value.strip() else ""


def _changed(rest: str, names: set[str]) -> str:
    return f"os.chdir({_command(rest, names)})" if rest and rest != "-" else ""


def _run(rest: str, names: set[str]) -> str:
    """Return what runs another file in the same namespace, without words for it: its import."""
    found = re.match(r"^(-\w\s+)*(\w+)(\.py)?$", rest)
    return f"from {found[2]} import *" if found else ""


_MAKES: dict[str, Callable[[str, set[str]], str]] = {
    "env": _environment,
    "set_env": _environment,
    "cd": _changed,
    "run": _run,
    "pylab": lambda rest, names: "from pylab import *",
}
