"""The libraries whose calls ``dlrun port --from`` translates."""

from __future__ import annotations

from collections.abc import Mapping

from dlrun.port.translation import Library, ddl, horovod

LIBRARIES: Mapping[str, Library] = {"horovod": horovod.LIBRARY, "ddl": ddl.LIBRARY}
