"""The abstract run of a program: every statement once, loops until nothing changes, calls into their functions.

machine      the state, what is recorded, names and objects
expressions  literals, attributes, entries
operators    sums, products, comparisons, tests
calls        functions of the program
libraries    by the rules, functions and methods of libraries
given        what functions out of sight do with what they are given
library_rows what those with a row of their own do
classes      instances, methods, properties, fields of data classes
protocols    their special methods: a[k], for x in a, x in a
containers   what lists, dicts, sets and what is like them keep
loops        loops over a shard, solved
exits        what they leave, made serial
statements   assignments, imports, definitions
control_flow branches, other loops
callbacks    what Keras' fit() runs
"""

from __future__ import annotations

from dlrun.port.placement.interpret.callbacks import Callbacks


class Interpreter(Callbacks):
    """Runs a program abstractly; ``seen``, ``sinks``, ``tests`` and ``exits`` hold what came out."""
