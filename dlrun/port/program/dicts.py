"""Dicts that are written out, with braces or with ``dict()``."""

from __future__ import annotations

import libcst as cst


def pairs(node: cst.CSTNode) -> list[tuple[cst.BaseExpression | None, cst.BaseExpression]]:
    """Return the keys and values of ``{"loss": 0.0}`` and of ``dict(loss=0.0)``; of what is no such dict none.

    What is put in whole, ``**others``, has no key.
    """
    match node:
        case cst.Dict(elements=elements):
            return [(e.key if isinstance(e, cst.DictElement) else None, e.value) for e in elements]
        case cst.Call(func=cst.Name("dict"), args=args):
            return [(None if a.keyword is None else cst.SimpleString(repr(a.keyword.value)), a.value) for a in args]
    return []
