"""Runs inside the process that is watched: the script with torch and dl_comm.torch instrumented from outside.

``__main__.py`` is started instead of the script. It lets each module here put its instruments in place, runs the
script as ``__main__``, and the ``Recorder`` writes what happens, one JSON line per event, one file per rank.
Nothing here judges: that is done afterwards, over all ranks' traces, in ``dlrun.verify.checks``.
"""
