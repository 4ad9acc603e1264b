"""The attributes that a program sets: of its classes, functions and modules, and of a SimpleNamespace."""

from __future__ import annotations

from abc import ABC

import libcst as cst

from dlrun.port.program.onward import KEEPERS, Onward
from dlrun.port.program.script import Binding


class Attributes(Onward, ABC):
    """Answers what sets an attribute, whatever the object is called where that is done."""

    def note_attributes(self) -> None:
        """Note among the attributes of what ``script`` makes what is set from outside: ``state.step += 1``."""
        for call in (c for c in self.script.calls if self.script.name_of(c.func) in KEEPERS):
            for name, arg in ((a.keyword.value, a) for a in call.args if a.keyword is not None):
                self.script.attributes[call, name] = [Binding(name, "assign", arg, arg.value)]
        for cls in self.script.of(cst.ClassDef):  # lists that all its objects share, or each begins with
            for name, bound in self.script.scopes[cls.body].names.items():
                if all(
                    b.how == "assign" and (isinstance(b.value, (cst.List, cst.Dict)) or self._is_field(b.value))
                    for b in bound
                ):
                    self.script.attributes.setdefault((cls, name), list(bound))
        for target, binding in self.script.outside:
            for module in self.script.local_modules(target.value):
                there = module.names.setdefault(binding.name, [])
                there.extend([binding] if binding not in there else [])
            for owner in self._owners(target.value):
                key = (self.keeper(owner, binding.name) or owner, binding.name)
                known = self.script.attributes.setdefault(key, [])
                if not any(other is binding for other in known):
                    known.append(binding)
                    known.sort(key=lambda other: self.script.order[other.node])

    def _is_field(self, made: cst.CSTNode | None) -> bool:
        """Tell whether each object of a dataclass begins with its own ``made``: ``field(default_factory=list)``."""
        return isinstance(made, cst.Call) and self.script.name_of(made.func) == "dataclasses.field"

    def _owners(self, node: cst.BaseExpression) -> list[cst.CSTNode]:
        """Return what has the attributes of ``node``: classes, also by their names, functions, calls of namespaces."""
        made = [o.node for o in self.origins(node) if isinstance(o.node, cst.Call) and o.whole]
        spaces: list[cst.CSTNode] = [call for call in made if self.script.name_of(call.func) in KEEPERS]
        return [*self.classes(node)] or [*self.definitions(node)] or spaces

    def keeper(self, owner: cst.CSTNode, name: str) -> cst.CSTNode | None:
        """Return which of ``owner`` and its local bases, if it is a class, sets its attribute ``name``; else None."""
        if (owner, name) in self.script.attributes:
            return owner
        bases = (self.definition(base.value) for base in owner.bases) if isinstance(owner, cst.ClassDef) else ()
        found = (self.keeper(base, name) for base in bases if isinstance(base, cst.ClassDef) and base is not owner)
        return next((base for base in found if base is not None), None)

    def keepers(self, node: cst.Attribute) -> list[cst.CSTNode]:
        """Return what sets the attribute ``node``, each once: of ``state.total`` the class, or the one namespace."""
        found = (self.keeper(owner, node.attr.value) for owner in self._owners(node.value))
        return list(dict.fromkeys(owner for owner in found if owner is not None))

    def bindings(self, node: cst.CSTNode) -> list[Binding]:
        """Return what gives the variable ``node`` its values: a name, or an attribute that the program sets."""
        known = self.script.bindings_of(node)
        owners = self.keepers(node) if isinstance(node, cst.Attribute) and not known else []
        return known or [b for owner in owners for b in self.script.attributes[owner, node.attr.value]]  # type: ignore[attr-defined]
