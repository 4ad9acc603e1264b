"""``python -m dl_comm --cflags --libs``: how a C program is compiled and linked with dl_comm.

``eval "$(python -m dl_comm --env)"`` sets what the module file of Cray's plugin does, and has programs find the
operators of IBM's DDL, as that one's activation script does.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from dl_comm import _core
from dl_comm.basedir import basedir


def main() -> None:
    """Print what was asked for, on one line."""
    parser = argparse.ArgumentParser(prog="python -m dl_comm", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cflags", action="store_true", help="what the compiler needs")
    parser.add_argument("--libs", action="store_true", help="what the linker needs")
    parser.add_argument("--cmakedir", action="store_true", help="the folder for CMake's dl_comm_DIR")
    parser.add_argument("--basedir", action="store_true", help="a folder laid out as that of Cray's plugin")
    parser.add_argument("--env", action="store_true", help="a shell's lines that set the plugin's variables")
    asked = parser.parse_args()
    root = Path(str(_core.__file__)).parent
    words = []
    if asked.cflags:
        words.append(f"-I{root / 'include'}")
    if asked.libs:
        words.append(f"-L{root / 'lib'} -Wl,-rpath,{root / 'lib'} -ldl_comm")
    if asked.cmakedir:
        words.append(str(root / "lib" / "cmake" / "dl_comm"))
    if asked.basedir:
        words.append(str(basedir()))
    if asked.env:
        words.append(f"export CRAYPE_ML_PLUGIN_BASEDIR={shlex.quote(str(basedir()))}")
        words.append(f'LD_LIBRARY_PATH={shlex.quote(str(root / "lib/ddl"))}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"')
    if not words:
        parser.error("nothing asked: --cflags, --libs, --cmakedir, --basedir or --env")
    print(*words)


if __name__ == "__main__":
    main()
