"""The one door to ``templates/``: every line that dlrun writes into a user's world comes through here."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    here = Path(__file__).parent
    # Installed, the templates lie inside the package; in a checkout on PYTHONPATH, beside it.
    folders = [here / "templates", here.parent / "templates"]
    return Environment(
        loader=FileSystemLoader([str(f) for f in folders]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **facts: Any) -> str:
    """Return the text of ``templates/<template>`` filled with ``facts``.

    A name the template uses and ``facts`` lacks raises ``jinja2.UndefinedError``: a gap never reaches a user's file.
    """
    return _environment().get_template(template).render(**facts)
