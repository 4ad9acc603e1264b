"""Functions and methods of libraries: what has a row follows it; all else is computed from what it is given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from string import Formatter
from typing import Any

import libcst as cst

from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.torch import CLIPS
from dlrun.port.placement import rules
from dlrun.port.placement.fields import spelt
from dlrun.port.placement.interpret import parts, samples, sessions
from dlrun.port.placement.interpret.containers import CONTAINERS
from dlrun.port.placement.interpret.expressions import GOES_THROUGH
from dlrun.port.placement.interpret.given import Given
from dlrun.port.placement.interpret.machine import Field, Sink, arrays
from dlrun.port.placement.rules import Row
from dlrun.port.placement.store import (
    CONTENT,
    REST,
    Bound,
    Class,
    Function,
    Method,
    Obj,
    key_of,
)
from dlrun.port.placement.values import (
    ANY,
    BENT_COUNT,
    CLOCK,
    COUNT,
    ENTRY,
    MIX,
    NOTHING,
    RATIO,
    SAME,
    SO_FAR,
    UNIFORM,
    Kind,
    Place,
    Value,
    combine,
    constant,
    joined,
    out_of_sight,
    unknown,
)
from dlrun.port.program.script import argument, calls_method, children, dotted, walk

_READS_RATE = ("get_last_lr", "get_lr")
_RATES = ("lr", "learning_rate", "momentum", "weight_decay")
_SCORES = ("_score", "accuracy", "_auc")
_LOSSES = (
    "loss",
    "cross_entropy",
    "binary_cross_entropy_with_logits",
    "criterion",
    "_error",
    "divergence",
    "kl_div",
    "nll",
)
_FILLS_ARRAY = ("write", "unstack", "scatter", "split")  # of a TensorArray
_TEXT_BOXES = ("io.StringIO", "io.BytesIO")
_SHOWN = (Row.SHOWS, Row.CURVE, Row.AT_STEP)
_CONTAINERS = (Row.LIST, Row.SET, Row.DICT, Row.COUNTER, Row.DEQUE)
_IN_PLACE = (Row.ADD, Row.INDEX_ADD, Row.STORE, Row.SETS, Row.CLEAR)
# What shares the memory of its object, and what returns its object itself.
VIEWS = (
    "view",
    "reshape",
    "flatten",
    "squeeze",
    "ravel",
    "detach",
    "numpy",
    "contiguous",
    "t",
    "transpose",
    "resize_",
    "resize_as_",
    "squeeze_",
    "unsqueeze_",
    "zero_",
    "detach_",
    "requires_grad_",
)
MADE_BY = "builtins.object.__new__"
_UNBOUND = ("builtins.dict.", "builtins.list.", "builtins.set.", "collections.OrderedDict.")
_HANDS_OUT = (None, Row.ENTRIES, Row.PAIRED, Row.GET)
_PICKS = ("builtins.max", "builtins.min", "random.choice")
_FEW = ("heapq.nsmallest", "heapq.nlargest")
_OF_ANY_ORDER = ("builtins.sorted", "builtins.set", "builtins.frozenset", "collections.Counter")
_TRUTHS = ("builtins.any", "builtins.all", "builtins.bool")
_ELEMENTWISE = ("numpy.", "torch.", "tensorflow.", "math.", "jax.numpy.", "builtins.round", "builtins.abs")
_OF_TEXTS = ("os.path.join", "os.fspath", "builtins.str", "pathlib.Path", "pathlib.PurePath")
_OF_BASES = ("__init__", "__setitem__", "__getitem__")
_BUILTINS = {"__next__": "builtins.next", "__iter__": "builtins.iter", "__len__": "builtins.len"}
_REDUCES = (Row.SUM, Row.MEAN, Row.MAX, Row.MIN)
_STATISTICS = (Row.STATISTIC, Row.PLACE)
_COPIES = ("copy", "deepcopy", "clone", "tolist", "item", "array", "tensor", "astype", "float", "int", "complex")
_SECOND = ("norm", "quantile", "nanquantile", "percentile", "nanpercentile")  # whose axis is not their second argument

# Methods whose calls an object counts: of what, and where it has their number.
_COUNTED = {
    "step": ("torch.optim.lr_scheduler.", ("last_epoch", "_step_count")),
    "update_parameters": ("torch.optim.swa_utils.", ("n_averaged",)),
}


class Libraries(Given):
    """Runs calls of what lies out of sight, by the rules."""

    def block(self, body: cst.BaseSuite) -> None:
        """Run the statements of a block; see ``statements``."""
        raise NotImplementedError

    def array_of(self, node: cst.BaseExpression) -> Value:
        """Return what a store into ``node`` changes; see ``statements``."""
        raise NotImplementedError

    def fitted(self, receiver: Value, given: list[Value], node: cst.CSTNode) -> Value | None:
        """Run what of the program ``fit()`` runs; see ``callbacks``."""
        raise NotImplementedError

    def run_hooks(self, kind: str, node: cst.Call) -> None:
        """Run the functions that are hooked to modules; see ``calls``."""
        raise NotImplementedError

    # -- functions and methods of libraries ------------------------------------------------------------------------

    def _function(self, name: str, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        name = plain(name)
        row = rules.of_function(name)
        given = [*args, *keywords.values()]
        if CLIPS.search(name):
            self.gradients.read(node)
        elif name == "torch.autograd.backward":
            self.gradients.backward(node, self.is_diverged)
        elif name == "torch.autograd.grad" and "create_graph" in keywords and self._by_samples(args):
            self.by_samples[node] = None
        if self.shards.runs and row is Row.SAMPLES:
            return Value(ENTRY)
        if self.shards.runs and name.startswith("tensorflow.summary."):
            return ANY  # a node of the graph, and shown where a run is
        if self.shards.runs and name.startswith("tensorflow.metrics."):
            return sessions.streaming(self, node, name)
        if (updated := sessions.updated(self, name.removeprefix("tensorflow."), given, node)) is not None:
            return updated
        if row in _CONTAINERS:
            return self.make(row, node, args, keywords) if row is not Row.DEQUE else self._deque(node, args)
        if name in _PICKS and (picked := self.picked(args)) is not None:
            return picked
        if row in _REDUCES and len(args) >= 1 and row is not None:
            total = self.reduced(row, args, keywords, node)
            table = name.endswith(".add_n") and total.place.kind is not Kind.SAME and not self.entries(args[0]).scalar
            return replace(total, scalar=None) if table else total
        handler = getattr(self, f"_row_{row.name.lower()}", None) if row is not None else None
        if handler is not None:
            result: Value = handler(args, node)
            return result
        if name == MADE_BY and args and (classes := [ref for ref in args[0].refs if isinstance(ref, Class)]):
            return self.made_of(classes[0], node)
        if name.startswith(_UNBOUND) and args and args[0].refs:
            return self._method_call(Method(args[0], name.rpartition(".")[2]), args[1:], keywords, node)
        if row in (Row.REPLACE, Row.AS_DICT) and args:
            return self._fields_in(row, args[0], keywords, node)
        if name in _FEW and len(args) > 1 and self.grown(args[1]) and self.loop is not None:
            return Value(self.content(args[1]), refs=args[1].refs, name="cut")
        if name == "builtins.map" and len(args) > 1:
            return self._mapped(args, node)
        if name == "builtins.filter" and len(args) == 2 and self.shards.parts and self.loop is not None:
            return self._filtered(args, node)
        if name == "builtins.filter" and len(args) == 2 and (objects := self.objects_of(args[1:], node)) is not None:
            return objects  # which of samples are left differs between ranks
        if row is Row.HOLDS:
            return self._holder(name, keywords, node)
        if row is Row.TEXT and args and (own := self.own_text(node.args[0].value, args[0])) is not None:
            return own
        if row is Row.TEXT and given and (name == "builtins.format" or (len(given) == 1 and given[0].scalar)):
            return self.text(node, self.content(given[0]))
        self.run_given(given, node)
        if name == "builtins.open" and len(args) > 1 and re.search("[wax]", str(args[1].const)):
            self._sink(node, row=Row.WRITES)
        if row is None and (objects := self.may_return(given, node, name)) is not None:
            return objects
        place = parts.of_mean(combine(self.content(a) for a in given), name)
        if self.shards.parts and place.kind is Kind.ENTRY and samples.is_truth(self, name, node):
            return Value(parts.BENT, scalar=True)
        if name in _TRUTHS and place.uniform and self.asks_cadence(node):
            return Value(SAME, scalar=True, name="cadence")
        if row is None and isinstance(self.script.parents.get(node), cst.Expr):
            self.may_fill(node, args)
        how = parts.reduction(node, keywords.get("reduction"))
        losses = name.rpartition(".")[2].lower().endswith(_LOSSES) and how not in ("none", "")
        of_numbers = bool(given) and all(g.scalar for g in given) and name.startswith(_ELEMENTWISE)
        number = name.endswith(".norm") and len(given) == 1
        averaged = keywords.get("average", constant("macro")).const
        number = number or (name.endswith(_SCORES) and isinstance(averaged, str))
        if row in _STATISTICS and place.kind is Kind.ENTRY:
            return self._statistic(row, name, args, keywords, place)
        if self.shards.parts and place.kind is Kind.ENTRY and parts.picks(name, args):
            return Value(self.of_episode(parts.PICKED))
        if self.shards.parts and not self.shards.episodes and parts.compares(name, args, keywords):
            return Value(parts.LOCAL)
        if row is Row.TRANSPOSES and self.shards.parts and args and place.kind is Kind.ENTRY:
            axes = self._parts_of(given[1:2]) or given[1:]
            return parts.transposed(replace(args[0], place=self.content(args[0])), axes)
        scalar = True if losses or number or row is Row.SCALAR or of_numbers else None
        sums = row is Row.COUNTS or (row is Row.CONTRACTS and parts.contracted(name, args, keywords))
        if self.shards.parts and place.kind is Kind.ENTRY and sums:
            place = self.of_episode(parts.SUMMED)
        elif self.shards.parts and place.kind is Kind.ENTRY:
            tensors = name.startswith(("torch.", "tensorflow."))  # log(1 - pred) is of each sample, most likely
            known = [g for g in given if g.scalar and not (tensors and g.name == "guessed")]
            numbers = row is Row.SCALAR or any(g.place.kind is Kind.ENTRY for g in known)
            centered = any(g.name == "centered" for g in given)
            if losses or how == "sum":
                place = self.of_episode(parts.loss(parts.LOCAL if parts.of_spread(given) else place, how))
                scalar = True
            elif not how:
                place = unknown(node, parts.SUM_OR_MEAN)
            elif name.endswith("accuracy_score") and keywords.get("normalize", ANY).const is False:
                place = self.of_episode(parts.SUMMED)
            elif name.endswith((".unique", ".unique_consecutive")):
                return Value(place, name=samples.DISTINCT)
            elif centered or (numbers and parts.bends(name)) or (number and not name.endswith("accuracy_score")):
                place = parts.BENT if numbers or number else parts.LOCAL
        reduced = any(map(self.serial, given))
        kinds = (self.shards.kind(n) for n in (node, *(arg.value for arg in node.args)))
        if place.kind in (Kind.COUNT, Kind.INDEX) and (any(kinds) or self._goes_by_own_steps(node)):
            place = SAME  # a scheduler that is told the steps of an epoch is no count
        elif row is None:
            place = out_of_sight(place)
        place = parts.of_count(place, name)
        if place.kind is Kind.SAME and row is not Row.SCALAR:
            made = self.new("foreign", node, name=name)
            data = keywords.get("dataset", args[0] if args else ANY)
            if name.endswith("DataLoader") and all(isinstance(r, Obj) and r.kind == "instance" for r in data.refs):
                self.data_of[made] = data.refs
            if row is Row.STATE:
                self.write((made, CONTENT), Value(zero=True))
            if "reduction" in keywords:
                self.write((made, "reduction"), keywords["reduction"])
            return Value(refs=frozenset([made]), scalar=scalar, reduced=reduced)
        texts = frozenset[Any]().union(*(g.texts for g in given)) if name in _OF_TEXTS else frozenset[Any]()
        foreign = parts.FOREIGN if row is None and parts.is_foreign(name) and place == ENTRY else ""
        guessed = "guessed" if scalar and any(g.name == "guessed" for g in given) else ""
        finds = parts.asks(name) or (name.endswith(".where") and len(given) == 1)
        if self.shards.parts and finds and parts.is_of_samples(Value(scalar=scalar), place):
            guessed = parts.MASK
        if self.shards.parts and place == ENTRY and (how == "none" or parts.of_each_sample(name)):
            guessed = parts.FLAT
        return Value(place, scalar=scalar, reduced=reduced, texts=texts, name=foreign or guessed)

    def _statistic(
        self, row: Row | None, name: str, args: list[Value], keywords: dict[str, Value], place: Place
    ) -> Value:
        """Return a statistic of one iteration's values, or where their extreme is: of a part it is none of the whole.

        Where in a loop within an iteration an extreme is, is most likely of one sample: ``row.argmax() == label``.
        """
        places = args[1 + (name.rpartition(".")[2] in _SECOND) :]
        beside = bool(places) and self.content(places[0]).kind is Kind.ENTRY  # samples, too: corrcoef(scores, labels)
        given = [*([] if beside else places[:1]), *(v for k, v in keywords.items() if k in ("dim", "axis"))]
        axes = [v.const for v in given if not isinstance(v.const, (bool, type(None)))]
        of_sample = row is Row.PLACE and self.loop is not None and self.loop.inner > 0
        if self.shards.parts and not self.shards.episodes and not of_sample:
            place = parts.reduced(Row.STATISTIC, Value(place), not axes, 0 in axes)
        return Value(place, scalar=None if axes or of_sample or beside else True)

    def _holder(self, name: str, keywords: dict[str, Value], node: cst.Call) -> Value:
        """Return an object that has what it is given as attributes: ``Checkpoint(step=step, iterator=iter(data))``."""
        made = self.new("foreign", node, name=name)
        for field, value in keywords.items():
            self.write((made, field), value)
        return Value(refs=frozenset([made]))

    def _parts_of(self, args: list[Value]) -> list[Value]:
        """Return the entries of a tuple or list that are all known."""
        if args and args[0].items is not None:
            return list(args[0].items)
        held = [field for value in args for ref in value.refs if isinstance(ref, Obj) for field in self.fields(ref)]
        known = [v for k, v in held if k[1:-1].isdigit()]
        return known if len(known) == sum(v.name != "empty" for _, v in held) else []

    def _goes_by_own_steps(self, made: cst.CSTNode) -> bool:
        """Tell whether what is ``made`` there is told numbers of steps that are divided: a schedule."""
        return any(n in self.shards.divided for n in walk(made))

    def _mapped(self, args: list[Value], node: cst.Call) -> Value:
        if any(a.place.kind is Kind.SHARD for a in args[1:]) and self.loop is None:
            before = dict(self.state or {})
            entry = self.call_value(args[0], [self.iterate(node, a) for a in args[1:]], {}, node)
            up = self.script.parents[node]
            while isinstance(up, (cst.Arg, cst.Call)):  # enumerate(map(f, loader))
                up = self.script.parents[up]
            if isinstance(up, cst.For):
                return replace(self.parallel((entry,), True), name="drawn")
            self.lose_written(before, node, GOES_THROUGH)
            return Value(unknown(node, GOES_THROUGH))
        entry = self.call_value(args[0], [self.entries(a) for a in args[1:]], {}, node)
        made = self.new("list", node, "mapped")
        if self.shards.parts and self.loop is not None:
            of_samples = samples.are_samples(self, node.args[1].value)
            self.samples_in[made] = samples.EACH if of_samples else samples.kind_of(self, args[1])
        self.like(made, args[1], entry)
        return Value(refs=frozenset([made]))

    def _filtered(self, args: list[Value], node: cst.Call) -> Value:
        entry = self.entries(args[1])
        if isinstance(next(iter(args[0].refs), None), (Function, Bound)):
            self.call_value(args[0], [entry], {}, node)
        made = self.new("list", node, "filtered")
        each = samples.are_samples(self, node.args[1].value) or samples.kind_of(self, args[1]) == samples.EACH
        self.samples_in[made] = samples.SOME if each else samples.MIXED
        self.write((made, REST), entry)
        return Value(refs=frozenset([made]))

    def _deque(self, node: cst.Call, args: list[Value]) -> Value:
        return self.make(Row.DEQUE, node, args)

    def reduced(self, row: Row, args: list[Value], keywords: dict[str, Value], node: cst.CSTNode) -> Value:
        """Return the sum, mean or extreme of what one or several arguments hold."""
        keywords = {k: v for k, v in keywords.items() if k not in ("name", "dtype")}
        whole = len(args) == 1 and not keywords
        first = args[0]
        sides = self._parts_of([first]) if row is Row.SUM and not self.shards.parts else []
        if any(side.place.kind is Kind.RUN for side in sides):
            total = sides[0]
            for side in (*sides[1:], *args[1:2]):
                total = self.operated(cst.Add(), total, side, node)
            return total
        grown = self.grown(first)
        if grown:
            held = (self.state or {})[grown[0]].place
            goes_on = self.recording and held.at not in self.from_zero and "reset" not in held.adds
            if row is Row.MEAN and goes_on and not self.shards.parts:
                return Value(MIX, scalar=True)  # all ranks hold what earlier loops have kept, and each adds its own
            if row is Row.MEAN and not self.shards.parts and self._keeps_the_last(first):
                text = "it is of the last so many iterations of this rank, n times as many of the serial script"
                return Value(unknown(node, text), scalar=True)
            if row is Row.MEAN:
                return Value(parts.of_each(held.adds) if self.shards.parts else SO_FAR, scalar=True)
            if row is Row.SUM:
                return Value(Place(Kind.RUN, held.at, held.adds), scalar=True)
            if self.shards.parts and not held.adds <= {"samples", "reset", "some"}:
                return Value(
                    unknown(node, "it is that of the numbers of this rank's parts of the batches"), scalar=True
                )
            return Value(Place(Kind.EXTREME, held.at, frozenset({row.name.lower()})), scalar=True)
        if row in (Row.MAX, Row.MIN) and len(args) == 2:
            sides = [replace(a, place=self.one_run(a) or self.content(a)) for a in args]
            counted = [side.place.counts or side.place.kind in (Kind.COUNT, Kind.INDEX) for side in sides]
            if any(counted) and all(side.place.uniform for side in sides) and not self.shards.parts:
                return Value(combine(s.place for s in sides) if all(counted) else BENT_COUNT, scalar=True)
            for i, (run, other) in enumerate(((sides[0], sides[1]), (sides[1], sides[0]))):
                if run.place.untouched and self.shards.parts and self.content(other).kind is Kind.ENTRY:
                    given = [a.value for a in node.args] if isinstance(node, cst.Call) else []
                    if len(given) == 2 and self.force(given[1 - i], other).place == SAME:
                        return Value(replace(run.place, adds=frozenset({"same"})), scalar=True)
                if run.place.kind is Kind.RUN and run.place.adds == {"fires"} and other.place.kind is Kind.SAME:
                    return Value(run.place, scalar=True)  # held within bounds
                carried = run.place.untouched or run.place.kind is Kind.EXTREME
                if other.place == SO_FAR and (carried or (self.cadenced and run.place == SAME)):
                    return self._extreme_of_means(run, other, node, 1 - i)
                goes_on = run.place.kind is Kind.EXTREME and run.place.adds == {row.name.lower()}
                if (run.place.untouched or goes_on) and self.content(other).kind in (Kind.ENTRY, Kind.SAME):
                    return Value(Place(Kind.EXTREME, run.place.at, frozenset({row.name.lower()})), scalar=True)
        place = combine(self.content(a) for a in (args if row in (Row.MAX, Row.MIN) else args[:1]))
        if row is Row.MEAN and "means" in place.adds:
            return Value(SAME, scalar=True if whole else None, reduced=True)
        if self.shards.parts and whole and (of_samples := samples.reduced(self, row, first)) is not None:
            return Value(of_samples, scalar=True)
        if self.shards.parts and place.kind is Kind.ENTRY:
            axes = [args[1]] if len(args) > 1 else [v for k, v in keywords.items() if k in ("dim", "axis")]
            samples_at = (1, -1) if first.name == parts.TRANSPOSED else (0,)
            along = any(axis.const in samples_at and not isinstance(axis.const, bool) for axis in axes)
            place = self.of_episode(parts.reduced(row, replace(first, place=self.content(first)), whole, along))
            name = "mean" if along and row is Row.MEAN else first.name if first.name == "centered" else ""
            if row is Row.MEAN and "weights" in keywords and not self.content(keywords["weights"]).uniform:
                place = parts.LOCAL if along else parts.BENT  # each rank divides by the sum of its own weights
            if (
                row in (Row.MAX, Row.MIN)
                and len(args) > 1
                and any(a.scalar and a.place.kind is Kind.ENTRY for a in args)
            ):
                place = parts.BENT  # max(hits, 1)
            return Value(place, scalar=True if whole else None, name="" if whole else name)
        reduced = any(map(self.serial, args))
        if place.kind is Kind.MIX and len(args) == 1 and (one := self.one_run(first)) is not None and row is Row.SUM:
            place = one
        return Value(place, scalar=True if whole else None, reduced=reduced)

    def _keeps_the_last(self, value: Value) -> bool:
        """Tell whether ``value`` is a queue of a greatest length that nothing divides: ``deque(maxlen=100)``."""
        sites = [ref.site for ref in value.refs if isinstance(ref, Obj) and ref.kind == "deque"]
        lengths = [argument(site, "maxlen", 1) for site in sites if isinstance(site, cst.Call)]
        return any(n is not None and dotted(n) != "None" and n not in self.shards.divided for n in lengths)

    def _extreme_of_means(self, run: Value, mean: Value, node: cst.CSTNode, at: int) -> Value:
        """Return the extreme so far of means so far: of all ranks' where these come together, else unknown."""
        given = [a.value for a in node.args] if isinstance(node, cst.Call) else []
        if self.cadenced and len(given) == 2 and self.force(given[at], mean).place == SAME:
            return run if run.place == SAME else run.at(Place(Kind.RUN, run.place.at, frozenset({"fires"})))
        return Value(unknown(node, "it is the extreme of means over what this rank has kept so far"), scalar=True)

    def _by_samples(self, args: list[Value]) -> bool:
        """Tell whether these are a mean over a part of a batch, and its samples: gradients are n times the serial."""
        if not self.shards.parts or self.shards.episodes or len(args) < 2 or not args[0].scalar:
            return False  # batches of episodes that a rank plays are no parts of serial ones
        of, by = map(self.content, args[:2])
        return of.kind is Kind.ENTRY and "summed" not in of.adds and by.kind is Kind.ENTRY

    def _method_call(self, method: Method, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        receiver, name = method.receiver, method.name
        if name in _BUILTINS and not args:
            return self._function(_BUILTINS[name], [receiver], {}, node)
        row = rules.of_method(name)
        given = [*args, *keywords.values()]
        if self.shards.runs and row is Row.SAMPLES:
            return Value(ENTRY)  # whatever data set an iterator is set to
        if (updated := sessions.updated(self, name, [receiver, *given], node)) is not None:
            return updated
        if name == "format" and isinstance(receiver.const, str):
            return self.text(node, self._of_fields(receiver.const, args, keywords, node))
        if name == "join" and isinstance(receiver.const, str) and len(args) == 1:
            if self.recording and node.args:
                self._note_held(node.args[0].value)
            return self.text(node, combine([self.content(args[0])]))
        if receiver.name == "__dict__" and name == "update":
            for arg in args:
                for source in arg.refs:
                    for key, value in self.fields(source) if isinstance(source, Obj) else ():
                        self.set_attribute(receiver, key[2:-2], value, node) if key.startswith('["') else None
            return ANY
        if name == "register_buffer" and len(args) > 1 and isinstance(args[0].const, str):
            self.set_attribute(receiver, args[0].const, args[1], node)
            return ANY
        lists = [at for at in self.grown(receiver) if at[0].kind == "list"] if name in ("sort", "reverse") else []
        for at in lists if self.loop is not None else []:
            held = (self.state or {})[at]
            if name == "sort" and not node.args and held.place.kind is Kind.RUN:
                self.write(at, held.at(replace(held.place, adds=held.place.adds | {"ordered"})))
            else:
                self.trim(receiver)  # in an order of each rank's own
        if name in _OF_BASES and (owners := [r for r in receiver.refs if isinstance(r, Obj)]):
            return self._of_base(owners, name, args, keywords, node)
        if row is not None and (known := self.method_of(row, receiver, args, node, name)) is not None:
            return known
        if row in _IN_PLACE and row is not None:
            owner = node.func.value if isinstance(node.func, cst.Attribute) else None
            if owner is not None and (not receiver.refs or calls_method(owner, *VIEWS)):
                receiver = self.array_of(owner)
            done = self._cleared(receiver) if row is Row.CLEAR else self.in_place(row, receiver, args, node, name)
            if done is not None:
                return done
        if receiver.place.kind is Kind.SHARD and (found := self._of_shard(receiver, name, node)) is not None:
            return found
        if (metric := self._metric(receiver, name, given, node)) is not None:
            return metric
        if name in _READS_RATE and self.content(receiver).uniform:
            return ANY  # whatever counts of steps a schedule was given: all ranks train with it
        if row is Row.CLOCK or (row is Row.ON_DISK and self.in_training(node)):
            return Value(CLOCK, scalar=True)
        counts = name in ("count", "index") and len(args) == 1
        if counts and self.shards.parts and self.loop is not None and not receiver.scalar:
            of_samples = samples.are_samples(self, node.func.value)  # type: ignore[attr-defined]
            if of_samples or samples.kind_of(self, receiver) in (samples.EACH, samples.SOME):
                return Value(self.of_episode(parts.SUMMED if name == "count" else parts.BENT), scalar=True)
        if row is Row.KEEPS:
            return self._converted(receiver, name, node)
        if row in (Row.REPLACE, Row.AS_DICT):
            return self._fields_in(row, receiver, keywords, node)
        if row in _REDUCES and row is not None:
            return self.reduced(row, [receiver, *args], keywords, node)
        if row is Row.SHAPE:
            place = self.content(receiver)
            if "means" in place.adds:
                return Value(place, scalar=True)  # a place for each local iteration
            batch = place.kind is Kind.ENTRY
            axis = args[0].const if args else 0
            if batch and not (self.shards.parts and axis):
                return self.size()
            return Value(SAME, scalar=True, reduced=self.loop is None and self.serial(receiver))
        if self.shards.resumes and name == "save":
            return ANY  # by the number in its file's name a run goes on: see ``steps/counts/file_numbers``
        if self.shards.runs and name == "should_stop":
            return Value(scalar=True)  # shards are even: all ranks run out of batches together
        of_keras = any("keras." in ref.name for ref in receiver.refs if isinstance(ref, Obj))
        if name == "get_layer" and of_keras and self.layers():
            return Value(refs=frozenset([self.new("foreign", node, name=".get_layer"), *self.layers()]))
        if _maker(receiver) == "tensorflow.TensorArray" and name in _FILLS_ARRAY:
            return self._filled(receiver, args[-1:])
        if name == "remove" and any(isinstance(ref, Obj) and ref.kind == "list" for ref in receiver.refs):
            self.trim(receiver)
            return ANY
        board = rules.of_object(_maker(receiver)) is Row.SHOWS
        alone = isinstance(self.script.parents.get(node), cst.Expr)
        box = row is Row.SHOWS and _maker(receiver) in _TEXT_BOXES
        tells = alone and not name.startswith("to_")  # of a table, the table is what is shown
        if (row in _SHOWN and (board or box or tells or self.content(receiver).uniform)) or (board and alone):
            self._sink(node, row=row)
            if name.startswith("to_") and isinstance(node.func, cst.Attribute):
                self._sink(node, of=node.func.value)  # a table's file
            self.write_into(receiver, node)
            return ANY
        if self._trains(name, receiver, args, given, node):
            return ANY
        history = self.fitted(receiver, given, node) if name in ("fit", "fit_generator") else None
        if history is not None:
            return history
        if row in (Row.PROGRESS, Row.NOTHING):
            self.run_given(given, node)
            return ANY
        self.run_given(given, node)
        kind = self.shards.kind(node.func.value if isinstance(node.func, cst.Attribute) else node.func)
        if alone and not kind and row is not Row.SCALAR and self.keep(receiver, given, node):
            self._sink(node, kept=True)
        networks = [r for r in receiver.refs if isinstance(r, Obj) and r.cls is not None and self.is_module(r.cls)]
        base = SAME if networks and row is Row.PREDICTS else self.content(receiver)
        if alone and base.kind is Kind.UNKNOWN and name.startswith("to_") and isinstance(node.func, cst.Attribute):
            self._sink(node, of=node.func.value)  # a table's file
        if row in _STATISTICS and base.kind is Kind.ENTRY:
            return self._statistic(row, name, [receiver, *args], keywords, base)
        if row is Row.TRANSPOSES and self.shards.parts and base.kind is Kind.ENTRY:
            return parts.transposed(replace(receiver, place=base), self._parts_of(given[:1]) or given)
        sums = row is Row.COUNTS or (row is Row.CONTRACTS and parts.contracted(name, [receiver, *args], keywords))
        if self.shards.parts and sums and base.kind is Kind.ENTRY:
            return Value(self.of_episode(parts.SUMMED))
        rows = [replace(receiver, place=base), *args]
        if self.shards.parts and not self.shards.episodes and parts.compares(f".{name}", rows, keywords):
            return Value(parts.LOCAL)
        op = parts.operator_of(name)
        if self.shards.parts and op is not None and len(given) == 1 and Kind.ENTRY in (base.kind, given[0].place.kind):
            return self.operated(op, receiver, given[0], node)
        number = parts.unguessed(receiver).scalar
        bent = receiver.name == "centered" or (number and parts.bends(name))
        if self.shards.parts and base.kind is Kind.ENTRY and bent:
            return Value(parts.BENT if number else parts.LOCAL, scalar=number)
        if row in _HANDS_OUT and (objects := self.may_return([receiver, *given], node, f".{name}")) is not None:
            return objects
        place = parts.of_mean(combine([base, *(self.content(a) for a in given)]), name)
        if place.kind is Kind.SAME and row is Row.GET and len(args) == 2 and args[1].scalar:
            return Value(scalar=True, reduced=self.serial(receiver))  # a number, as what is there where it is missing
        if place.kind is Kind.SAME or (place.kind is Kind.COUNT and name in ("fit", "fit_generator")):
            made = self.new("foreign", node, name=f".{name}")
            if name == "add_weight":  # of a layer, a model or a metric
                begins, shape = argument(node, "initializer"), argument(node, "shape")
                zero = begins is not None and self.eval(begins).const == "zeros"
                one = shape is None or (isinstance(shape, cst.Tuple) and not shape.elements)
                self.write((made, CONTENT), Value(zero=zero))
                return Value(refs=frozenset([made]), scalar=one or None)
            serial, shared = self.serial(receiver) or any(map(self.serial, given)), self.memory_of(receiver)
            return Value(refs=frozenset([made]), reduced=serial, of=shared)
        if self.shards.parts and place.kind is Kind.ENTRY and samples.is_truth(self, f".{name}", node):
            return Value(parts.BENT, scalar=True)
        masks = self.shards.parts and row is None and parts.asks(name) and parts.is_of_samples(receiver, place)
        if self.shards.parts and place.kind is Kind.ENTRY and parts.picks(name, [receiver, *args]):
            place = self.of_episode(parts.PICKED)
        return Value(out_of_sight(place), scalar=True if row is Row.SCALAR else None, name=parts.MASK if masks else "")

    def _of_fields(self, template: str, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Place:
        """Return the placement of what the fields of a template read: ``{top.avg:.3f}`` no more of ``top``."""
        given = {str(i): value for i, value in enumerate(args)} | keywords
        fields = _fields(template)
        read = dict.fromkeys(given) if fields is None else fields
        sources = {a.keyword.value if a.keyword is not None else str(i): a.value for i, a in enumerate(node.args)}
        apart = fields is not None and spelt(node, fields)
        found: list[Place] = []
        for field in read:
            first, *names = field.split(".")
            value = given.get(first, ANY)
            for name in names:
                value = self.attribute(value, name, node)
            self.use(value)
            place = self.content(value)
            found.append(place)
            source, kinds = sources.get(first), {ref.kind for ref in given.get(first, ANY).refs if isinstance(ref, Obj)}
            if not names or source is None or kinds != {"instance"} or place.kind in (Kind.SAME, Kind.CLOCK):
                continue
            if apart:
                self.note(self._field(node, field, source, names), value)
            elif place.kind not in UNIFORM:
                self.note(source, Value(MIX, refs=given[first].refs))  # no expression here is the number itself
        return combine(found)

    def _field(self, call: cst.Call, field: str, source: cst.BaseExpression, names: list[str]) -> cst.BaseExpression:
        """Return the expression that a field of the template of ``call`` stands for: ``losses.avg``."""
        known = self.fields_of.setdefault(call, {})
        if field not in known:
            read = source
            for name in names:
                read = cst.Attribute(read, cst.Name(name))
            self.script.parents[read] = self.script.parents[source]
            known[field] = Field(call, field, source, read)
        return known[field].read

    def _of_base(
        self, owners: list[Obj], name: str, args: list[Value], keywords: dict[str, Value], node: cst.Call
    ) -> Value:
        """Return what ``super().__setitem__(key, value)`` and the like do in a class of containers."""
        found: list[Value] = []
        for ref in owners:
            key = key_of(args[0].const) if args else None
            if name == "__init__" and ref.kind != "instance":
                self.filled(ref, args, keywords)
            elif name == "__setitem__" and len(args) == 2:
                self.store_entry(ref, key, args[0], args[1], node)
            elif name == "__getitem__":
                found.append(self.entry_in(ref, key, Value(refs=frozenset([ref]))))
        return joined(found)

    def store_entry(self, ref: Obj, key: str | None, index: Value, value: Value, target: cst.CSTNode) -> None:
        """Keep ``value`` in a container; see ``statements``."""
        raise NotImplementedError

    def note_steering(self, name: Any, value: Value, source: cst.BaseExpression | None) -> None:
        """Note what a rate is set to in a loop over a shard: it must be the same on all ranks."""
        place = self.content(value)
        apart = not place.uniform or place.kind in (Kind.COUNT, Kind.INDEX) or place.counts
        inside = self.loop is not None or place.kind is Kind.CLOCK
        if inside and self.recording and name in _RATES and source is not None and apart:
            self.steered[source] = None

    def _trains(self, name: str, receiver: Value, args: list[Value], given: list[Value], node: cst.Call) -> bool:
        """Note what a method does to the training: rates, losses, hooks, weights; tell whether that is all."""
        if name == "step" and node.args and self.recording and self.shards.kind(node.func.value) == "scheduler":  # type: ignore[attr-defined]
            place = self.content(args[0]) if args else SAME
            if not place.uniform:
                self.steered[node.args[0].value] = None
        library, numbers = _COUNTED.get(name, ("", ()))
        for ref in receiver.refs if numbers and self.loop is not None and not self.cadenced else ():
            for number in numbers if isinstance(ref, Obj) and ref.name.startswith(library) else ():
                self.write((ref, number), Value(self.updates, scalar=True))
        if name == "assign" and args and isinstance(node.func, cst.Attribute):
            target = node.func.value  # optimizer.learning_rate.assign(0.01)
            named = target.attr.value if isinstance(target, cst.Attribute) else ""
            self.note_steering(named, args[0], node.args[0].value)
        if name == "backward":
            self.gradients.backward(node, self.is_diverged)
        elif CLIPS.search(name):
            self.gradients.read(node)
        loss = receiver if name == "backward" else args[0] if name == "gradient" and len(args) > 1 else None
        if loss is not None and self.recording and self.loop is not None:
            self.losses[node] = self.content(loss)
        if name == "backward" and not args:
            self._is_number(node)
        if name == "backward" and self.loop is not None:
            self.run_hooks("gradient_hooks", node)
        if name.startswith("register_") and name.endswith("hook"):
            hooks = self.hooks if "forward" in name else self.gradient_hooks
            hooks.update(dict.fromkeys(r for g in given for r in g.refs if isinstance(r, (Function, Bound))))
            return True
        if name == "gradient" and len(args) > 1:
            self.trained |= {
                r for r in self.reachable(args[1:2]) if r.kind == "foreign" and not sessions.takes_no_gradient(r)
            }
        return False

    def _of_shard(self, receiver: Value, name: str, node: cst.Call) -> Value | None:
        """Return what a method of a shard returns: of a pipeline another one."""
        if name == "enumerate":
            return self.numbered(receiver, self.entries(receiver), node)
        if name in ("cardinality", "__len__"):
            return Value(SAME if self.shards.parts else Place(Kind.COUNT), scalar=True)
        return None if name in ("next", "get_next", "item") else receiver

    def _metric(self, receiver: Value, name: str, given: list[Value], node: cst.Call) -> Value | None:
        """Return what a method of a library's metric object returns, whose state sums up what it is given."""
        owners = [r for r in receiver.refs if isinstance(r, Obj) and rules.of_function(r.name) is Row.STATE]
        if not owners:
            return None
        for ref in owners:
            if name in ("reset_state", "reset_states", "reset"):
                self.write((ref, CONTENT), Value(zero=True))
            elif name in ("update_state", "update", "__call__", "forward"):
                held = self.read((ref, CONTENT)) or Value(zero=True)
                entry = combine(map(self.content, _without_weights(given)))
                if self.shards.parts and entry == ENTRY and rules.is_sum(ref.name) and not any(g.scalar for g in given):
                    entry = self.of_episode(parts.SUMMED)  # over the samples
                self.write((ref, CONTENT), Value(self.added(held, entry, node)))
        if name in ("update_state", "update", "reset_state", "reset_states", "reset"):
            return ANY
        held_now = joined(self.read((ref, CONTENT)) or ANY for ref in owners)
        place = held_now.place
        by_line = self.loop is None or not isinstance(self.loop.node, cst.SimpleStatementLine)  # else fit() folds it
        if place.kind is Kind.RUN:
            summed = by_line and all(rules.is_sum(ref.name) for ref in owners)
            place = replace(place, counts=False) if summed else replace(RATIO, at=place.at)
        return Value(place, scalar=True if name == "result" else None, reduced=held_now.reduced)

    def _is_number(self, node: cst.Call) -> None:
        """Note that what ``backward()`` begins at is one number, and by which tests it is made."""
        loss = node.func.value if isinstance(node.func, cst.Attribute) else None
        place = self.content(self.seen_last(loss)) if loss is not None else SAME
        if place.kind is Kind.UNKNOWN and place.why is not None and self.recording:
            self.steers.add(place.why.node)
        frame = self.home(loss.value) if isinstance(loss, cst.Name) else None
        held = self.read((frame, loss.value)) if frame is not None else None  # type: ignore[union-attr]
        if held is not None and not held.refs:
            self.write((frame, loss.value), replace(held, scalar=True))  # type: ignore[union-attr]

    def _cleared(self, receiver: Value) -> Value | None:
        owners = [ref for ref in receiver.refs if isinstance(ref, Obj) and ref.kind == "foreign"]
        for ref in owners:
            self.write((ref, CONTENT), Value(zero=True))
        return Value(refs=receiver.refs) if owners else None

    def _converted(self, value: Value, name: str, node: cst.Call) -> Value:
        """Return a value in another form; of a container a copy; of a module itself: ``loss.to(device)``."""
        if value.refs and all(isinstance(r, Obj) and r.name.startswith("torch.nn.") for r in value.refs):
            return value
        copied = [r for r in value.refs if isinstance(r, Obj)] if name in ("copy", "deepcopy", "tolist") else []
        if any(r.kind in CONTAINERS or self.is_plain(r) for r in copied):
            return self._copied(value, node)
        number = name == "item" or (name in ("float", "int", "complex") and not isinstance(node.func, cst.Attribute))
        scalar = True if number else value.scalar
        if self.grown(value) or any(isinstance(r, Obj) and r.kind in ("list", "set") for r in value.refs):
            return Value(value.place, refs=value.refs, scalar=scalar)
        place = self.content(value)
        if place.kind is Kind.MIX and (run := self.one_run(value)) is not None:
            place = run
        const = value.const if isinstance(value.const, (int, float)) else NOTHING
        zero = value.zero or self._zero(value)
        if arrays(value) and place.kind is Kind.SAME and not number:
            held = Value(place, zero=zero, scalar=scalar, reduced=self.serial(value))
            made = self.array(held, node, self.script.name_of(node.func))
            begun = [self.filled_by_memory[ref] for ref in value.refs if ref in self.filled_by_memory]
            self.filled_by_memory.update((ref, call) for ref in made.refs for call in begun)
            return replace(made, of=frozenset() if name in _COPIES else self.memory_of(value))
        text = ("number" if number else "list" if name == "tolist" else "") if place.kind is Kind.ENTRY else ""
        text = value.name if self.shards.parts and value.name in parts.NAMES else text
        if number and text == parts.FOREIGN and not self.shards.episodes and self.recording:
            self.guessed[node] = None
        shared = frozenset[Any]() if number or name in _COPIES else self.memory_of(value)
        return Value(place, const=const, zero=zero, scalar=scalar, reduced=self.serial(value), name=text, of=shared)

    def _zeros(self, value: Value) -> bool:
        """Tell whether a list holds zeros alone."""
        held = self.held(value)
        return bool(held) and all(v.zero for v in held)

    def _zero(self, value: Value) -> bool:
        held = [v for ref in value.refs if isinstance(ref, Obj) and (v := (self.state or {}).get((ref, CONTENT)))]
        return bool(held) and all(v.zero for v in held)

    def _fields_in(self, row: Row, value: Value, keywords: dict[str, Value], node: cst.CSTNode) -> Value:
        """Return an object anew with other fields, ``stats._replace(seen=8)``, or its fields in a dict."""
        own = [r for r in value.refs if isinstance(r, Obj) and r.kind == "instance"]
        if len(own) != 1 or len(value.refs) != 1:
            return Value(combine([self.content(value), *map(self.content, keywords.values())]))
        held = self.fields(own[0])
        if row is Row.AS_DICT:
            made = self.new("dict", node, "fields")
            for name, field in held:
                self.put(made, key_of(name), field)
            return Value(refs=frozenset([made]))
        made = self.new("instance", node, "replaced", cls=own[0].cls, name=own[0].name)
        for name, field in held:
            self.write((made, name), keywords.get(name, field))
        return Value(refs=frozenset([made]))

    def _copied(self, value: Value, node: cst.CSTNode) -> Value:
        made: list[Obj] = []
        for ref in value.refs:
            if isinstance(ref, Obj):
                one = self.new(ref.kind, node, "copy", cls=ref.cls, name=ref.name)
                for key, held in self.fields(ref):
                    self.write((one, key), held)
                made.append(one)
        return Value(refs=frozenset(made), zero=value.zero)

    def _boxes(self, part: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        """Yield ``part`` and what it is a text of: ``json.dumps(row)``, ``f"{row}\\n"``, or holds."""
        yield part
        number = any(value.scalar for value in self.seen.get(part, [])[-1:])
        texts = (cst.Call, cst.BinaryOperation, cst.FormattedString, cst.List, cst.Dict, cst.Tuple)
        sorts = isinstance(part, cst.Call) and self.script.name_of(part.func) in _OF_ANY_ORDER
        if isinstance(part, texts) and not number and not sorts:
            read = [arg.value for arg in part.args] if isinstance(part, cst.Call) else _within(part)
            for inner in read:
                refs = [ref for value in self.seen.get(inner, [])[-1:] for ref in value.refs]
                if all(isinstance(ref, Obj) and ref.kind in CONTAINERS for ref in refs):  # others tell what they show
                    yield from self._boxes(inner)

    def _held_in(self, value: Value, place: Place) -> Value:
        """Return what is shown of a box: one number of all its entries, or a row of several kinds."""
        items = value.items or ()
        numbers = value.scalar or self.numbers(value) or (all(v.scalar for v in items) and bool(items)) or None
        places = [v.place for v in (*items, *self.held(value)) if v.scalar and v.place.kind is not Kind.SAME]
        row = bool(places) and (not numbers or any(p.uniform for p in places))
        counters = [p for v in (*items, *self.held(value)) if v.place == COUNT for p in v.pending]
        shown = Value(place, refs=value.refs, scalar=None if row else numbers, name="row" if row else "")
        return replace(shown, pending=frozenset(counters))

    def _rows_shown(self, node: cst.Call) -> None:
        """Make serial the counts in a row that is shown behind loops over shards, and nothing reads: ``print(row)``."""
        for shown in (arg.value for arg in node.args if self.loop is None):
            parts = list(self._boxes(shown))
            called = [self.script.name_of(part.func) for part in parts if isinstance(part, cst.Call)]
            if any(not name or name.startswith(".") for name in called):
                continue  # it may do more than to make a text
            for name in [n for n in parts if isinstance(n, cst.Name)]:
                row = self.looked_at(name)
                made = self.made_here(name, row)
                counts = [(key, each, v) for key, each, v in self._literal(made, row) if self._counts(each, v)]
                if made is not name and counts:
                    before = {part: self.looked_at(part) for part in parts}
                    self._rewritten(row, {key: self.restore(each, v) for key, each, v in counts})
                    for part, value in before.items():
                        self.seen[part] = [v for v in self.seen.get(part, []) if v != value]
                    self.eval(shown)

    def _sink(
        self, node: cst.Call, kept: bool = False, row: Row | None = None, of: cst.BaseExpression | None = None
    ) -> None:
        if not kept and of is None:
            self._rows_shown(node)
        if self.recording:
            loop = self.loop if self.loop is not None else None
            inner = (node,) if self.playing or (loop is not None and loop.inner) else ()
            shows = tuple(arg.value for arg in node.args) if of is None else (of,)
            if row is Row.WRITES:
                shows = tuple(part for part in shows if self._names_count(part))
            if row is Row.AT_STEP:
                shows = tuple(part for part in shows if self._is_count(part))
            if self.shards.runs and not self.sharded:  # of a graph that nothing has run
                shows = tuple(part for part in shows if self.content(self.seen_last(part)).kind is not Kind.ENTRY)
            for part in (box for shown in shows for box in self._boxes(shown)):
                for value in self.seen.get(part, [])[-1:]:
                    if (text := self.own_text(part, value)) is not None:
                        self.note(part, text)
                        continue
                    place = self.content(self.in_order(part, value))
                    if place != value.place or value.items:
                        self.note(part, self._held_in(value, place))
            curve = row in (Row.CURVE, Row.AT_STEP)
            self.sinks.setdefault(node, []).append(
                Sink(node, shows, loop, (*self.diverged, *inner), kept, curve, tuple(self.paces), self.ended > 0)
            )

    def _filled(self, array: Value, given: list[Value]) -> Value:
        """Return a TensorArray with ``given`` in it: one that an iteration makes holds what that computes."""
        content = Value(combine([self.content(array), *(self.content(g) for g in given)]))
        for ref in array.refs:
            self.write((ref, CONTENT), content)
        return array

    def write_into(self, written: Value, node: cst.Call) -> None:
        """Let a text in memory hold the lines of this rank's iterations; what goes on file is rank 0's anyway."""
        for ref in written.refs if self.loop is not None else ():
            if isinstance(ref, Obj) and ref.name in _TEXT_BOXES:
                why = "it holds the lines that this rank's iterations write"
                self.write((ref, CONTENT), Value(unknown(node, why)))

    def own_text(self, node: cst.CSTNode, value: Value) -> Value | None:
        """Return the text by which an object of the program shows itself behind a loop; None of others."""
        if self.loop is not None or not any(isinstance(r, Obj) and r.kind == "instance" for r in value.refs):
            return None
        found = (self.dunder(value, name, [], node) for name in ("__format__", "__str__", "__repr__"))
        return next((text for text in found if text is not None and (text.texts or text.place == SAME)), None)

    def _names_count(self, part: cst.BaseExpression) -> bool:
        """Tell whether ``part`` is a text, as the name of a file, made of what counts this rank's iterations alone."""
        values = self.seen.get(part, ())[-1:]
        return any(v.texts and (v.place.kind in (Kind.COUNT, Kind.INDEX) or v.place.counts) for v in values)

    def _is_count(self, part: cst.BaseExpression) -> bool:
        values = self.seen.get(part, ())[-1:]
        return any(v.scalar and (v.place.kind in (Kind.COUNT, Kind.INDEX) or v.place.counts) for v in values)


def _fields(template: str) -> list[str] | None:
    """Return what the fields of a template name, as ``top.avg`` or ``0``; None where one is no chain of names."""
    try:
        named = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError:
        return None
    numbered = [f"{i}{name}" if name[:1] in ("", ".") else name for i, name in enumerate(named)]
    return numbered if all(re.fullmatch(r"\w+(\.[A-Za-z_]\w*)*", name) for name in numbered) else None


def _maker(value: Value) -> str:
    """Return the qualified name of what made an object of a library."""
    return next((ref.name for ref in value.refs if isinstance(ref, Obj) and ref.kind == "foreign"), "")


def _within(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return the expressions right below ``node``, those of elements and of fields of a text, too."""
    below = children(node)
    direct = [each for each in below if isinstance(each, cst.BaseExpression)]
    parts = (cst.Element, cst.DictElement, cst.FormattedStringExpression)
    return direct + [inner for each in below if isinstance(each, parts) for inner in _within(each)]


def _without_weights(given: list[Value]) -> list[Value]:
    """Return what a metric is given but for weights that are numbers of samples: weighed sums add up as others do."""
    return [g for i, g in enumerate(given) if i == 0 or g.name != "size"]
