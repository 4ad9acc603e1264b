"""A folder laid out as Cray's plugin is: what build lines and recipes find under ``CRAYPE_ML_PLUGIN_BASEDIR``.

===============  ================================================================================================
in it            what it is
===============  ================================================================================================
examples/        dlrun's examples
include/         dl_comm.h
lib/             libdl_comm.so, and its configuration for CMake
wheel/           one wheel of what is installed, for ``pip install $CRAYPE_ML_PLUGIN_BASEDIR/wheel/*.whl`` elsewhere
ddl-tensorflow/  of IBM's DDL: what scripts of DDL 1 look for as /opt/DL/ddl-tensorflow, where a link may lead here
===============  ================================================================================================

It lies in the user's cache (``XDG_CACHE_HOME``, or ``~/.cache``), one for each installation, made when it is first
asked for.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tempfile
import zipfile
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path

from dl_comm import _core
from dl_comm.errors import CommError

_NOT_IN_A_WHEEL = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")  # pip writes them as it installs


def basedir() -> Path:
    """Return the folder, making it first where it is not there. Raises CommError where it cannot be made."""
    package = Path(str(_core.__file__)).parent
    installed = distribution("dlrun")
    record = installed.read_text("RECORD") or ""
    key = hashlib.blake2b(f"{package} {record}".encode(), digest_size=6).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dl_comm"
    folder = cache / f"{installed.version}-{key}"
    if folder.exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=cache))
        made.chmod(0o755)
        links = {name: package / name for name in ("include", "lib")}
        links |= {"examples": _examples(), "ddl-tensorflow": package / "lib" / "ddl-tensorflow"}
        for name, place in links.items():
            (made / name).symlink_to(place)
        (made / "wheel").mkdir()
        _pack(installed, made / "wheel")
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    except OSError as error:
        raise CommError(
            f"{error.filename or cache}: {error.strerror}: the plugin's folder cannot be made",
            "Set XDG_CACHE_HOME to a folder that can be written to.",
        ) from error
    return folder


def _examples() -> Path:
    found = find_spec("dlrun")  # the command; it is not loaded
    here = Path(found.origin if found is not None and found.origin else ".").parent
    return next((p for p in (here / "examples", here.parent / "examples") if p.is_dir()), here / "examples")


def _pack(installed: Distribution, folder: Path) -> None:
    """Write a wheel of an installed distribution; of an editable one it leads to the same checkout."""
    fields = [line.partition(": ") for line in (installed.read_text("WHEEL") or "").splitlines()]
    tag = next(value for name, _, value in fields if name == "Tag")
    info = f"dlrun-{installed.version}.dist-info"
    record = []
    with zipfile.ZipFile(folder / f"dlrun-{installed.version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in installed.files or ():
            outside = ".." in file.parts or "__pycache__" in file.parts
            if outside or (file.parts[0] == info and file.name in _NOT_IN_A_WHEEL):
                continue
            content = Path(str(file.locate())).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            wheel.writestr(file.as_posix(), content)
            record.append(f"{file.as_posix()},sha256={digest},{len(content)}")
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
