"""``dl_comm`` under the name of the first generation of the plugin."""

from dl_comm import *  # noqa: F403
from dl_comm import __all__  # noqa: F401
