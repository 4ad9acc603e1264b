"""What is begun, or counted, for a key that a dict may not have yet, as ``setdefault()`` and ``get()`` do it."""

from __future__ import annotations

import libcst as cst

from dlrun.port.placement.interpret.statements import Statements
from dlrun.port.placement.store import REST, Obj, key_of
from dlrun.port.placement.values import Kind, Value, constant, joined, unknown
from dlrun.port.program.script import calls_method, dotted, statements

_FIRST = "it is of the first that this rank finds for a key, and in the serial script another may come first"


class ByKey(Statements):
    """Runs ``if key not in d: d[key] = ...``, and what counts by keys."""

    def runs_by_key(self, node: cst.If) -> bool:
        """Run a test whether a dict has a key, and what is kept under it then; tell whether ``node`` is one."""
        asked = self._asks_for_key(node.test)
        return asked is not None and (self._on_demand(node, *asked) or self._counts_by_key(node, *asked))

    def _on_demand(self, node: cst.If, asked: cst.BaseExpression, key: cst.BaseExpression, absent: bool) -> bool:
        """Run ``if k not in d: d[k] = [0, 0.0]`` as ``d.setdefault(k, [0, 0.0])``; tell whether it is such a line."""
        lines = statements(node.body)
        line = lines[0] if len(lines) == 1 and node.orelse is None and absent else None
        if not isinstance(line, cst.Assign):
            return False
        targets = [target.target for target in line.targets]
        kept = [t for t in targets if isinstance(t, cst.Subscript) and t.value.deep_equals(asked)]
        index = kept[0].slice[0].slice if len(kept) == 1 else None
        if not isinstance(index, cst.Index) or not index.value.deep_equals(key):
            return False
        owners = [ref for ref in self.eval(asked).refs if isinstance(ref, Obj)]
        value, at = self.eval(line.value), self.index_of(kept[0])
        kinds = {ref.kind for ref in value.refs if isinstance(ref, Obj)}
        holds = kinds <= {"list", "dict", "set", "deque", "instance", "foreign"}
        holds = holds and self.content(value).kind is Kind.SAME and (kinds != {"foreign"} or self.are_zeros(value))
        begins = bool(kinds) or (value.zero and value.scalar and key_of(at.const) is None)
        if not owners or any(ref.kind != "dict" for ref in owners):
            return False
        if self.loop is not None and not kinds and not self.content(value).uniform and key_of(at.const) is None:
            for ref in owners:
                self.put(ref, None, value.at(unknown(line, _FIRST, (ref, REST))))
            return True
        if not begins or not holds:
            return False
        found = [self.set_default(ref, [at, value], line.value) for ref in owners]
        for target in targets:
            if target is not kept[0]:
                self.assign(target, joined(found))
        return True

    def _counts_by_key(self, node: cst.If, asked: cst.BaseExpression, key: cst.BaseExpression, absent: bool) -> bool:
        """Run ``if k in d: d[k] += x``, ``else: d[k] = x``, in either order, see ``counts_up``."""
        if not isinstance(node.orelse, cst.Else):
            return False
        entry = cst.Subscript(asked, [cst.SubscriptElement(cst.Index(key.with_changes(lpar=[], rpar=[])))])
        ways = (node.orelse.body, node.body) if absent else (node.body, node.orelse.body)
        return self.counts_up(*ways, entry)

    def counts_up(self, there: cst.BaseSuite, absent: cst.BaseSuite, entry: cst.BaseExpression | None = None) -> bool:
        """Run ``d[k] += x``, and ``d[k] = x`` of a key that is ``absent``, as ``d[k] = d.get(k, 0) + x``.

        Tell whether it is so; ``entry`` is the ``d[k]`` that was asked for.
        """
        match (*statements(there), *statements(absent)):
            case (cst.AugAssign(operator=cst.AddAssign()) as adds, cst.Assign(targets=[begun]) as begins):
                pass
            case _:
                return False
        target = adds.target
        alike = begun.target.deep_equals(target) and begins.value.deep_equals(adds.value)
        if not alike or not isinstance(target, cst.Subscript) or (entry is not None and not entry.deep_equals(target)):
            return False
        owners = [ref for ref in self.eval(target.value).refs if isinstance(ref, Obj)]
        kinds = {ref.kind if isinstance(ref, Obj) else "" for ref in self.eval(begins.value).refs}
        dicts = bool(owners) and all(ref.kind == "dict" for ref in owners)
        unknown_key = key_of(self.index_of(target).const) is None
        if not (dicts and unknown_key and (kinds <= {"foreign"} or kinds == {"list"})):
            return False
        nothing = constant(0) if kinds <= {"foreign"} else Value(refs=frozenset([self.new("list", begins)]), zero=True)
        for ref in owners:
            self.set_default(ref, [self.index_of(target), nothing], begins)
        self.block(there)
        return True

    def _asks_for_key(self, test: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression, bool] | None:
        """Return the dict, the key, and whether ``test`` asks if it is absent: ``k not in d``, ``d.get(k) is None``."""
        match test:
            case cst.UnaryOperation(operator=cst.Not(), expression=inner):
                asked = self._asks_for_key(inner)
                return (asked[0], asked[1], not asked[2]) if asked is not None else None
            case cst.Comparison(left=key, comparisons=[cst.ComparisonTarget(operator=how, comparator=box)]):
                pass
            case _:
                return None
        if isinstance(how, (cst.In, cst.NotIn)):
            keys = calls_method(box, "keys") and isinstance(box, cst.Call) and isinstance(box.func, cst.Attribute)
            return (box.func.value if keys else box), key, isinstance(how, cst.NotIn)  # type: ignore[attr-defined]
        got = self.got(key) if isinstance(how, (cst.Is, cst.IsNot)) and dotted(box) == "None" else None
        if got is None or not isinstance(got.func, cst.Attribute):
            return None
        return got.func.value, got.args[0].value, isinstance(how, cst.Is)
