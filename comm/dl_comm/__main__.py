"""``python -m dl_comm --cflags --libs``: how a C program is compiled and linked with dl_comm."""

from __future__ import annotations

import argparse
from pathlib import Path

from dl_comm import _core


def main() -> None:
    """Print what was asked for, on one line."""
    parser = argparse.ArgumentParser(prog="python -m dl_comm", description=__doc__)
    parser.add_argument("--cflags", action="store_true", help="what the compiler needs")
    parser.add_argument("--libs", action="store_true", help="what the linker needs")
    parser.add_argument("--cmakedir", action="store_true", help="the folder for CMake's dl_comm_DIR")
    asked = parser.parse_args()
    root = Path(str(_core.__file__)).parent
    words = []
    if asked.cflags:
        words.append(f"-I{root / 'include'}")
    if asked.libs:
        words.append(f"-L{root / 'lib'} -Wl,-rpath,{root / 'lib'} -ldl_comm")
    if asked.cmakedir:
        words.append(str(root / "lib" / "cmake" / "dl_comm"))
    if not words:
        parser.error("nothing asked: --cflags, --libs or --cmakedir")
    print(*words)


if __name__ == "__main__":
    main()
