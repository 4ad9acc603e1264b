"""Part of step "shard": seeds that each process takes from its clock, its number or its system."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.feeds import samples
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.shard.order import before_init
from dlrun.port.steps.shard.unseeded import in_training

_SEEDS = re.compile(
    r"^(random\.(seed|Random)|numpy\.random\.(seed|RandomState|default_rng|SeedSequence)|"
    r"torch\.(random\.|cuda\.)?manual_seed(_all)?|tensorflow\.(random\.set_seed|(compat\.v1\.)?set_random_seed)|"
    r"(tensorflow\.)?keras\.utils\.set_random_seed|transformers\.set_seed|\w+(\.\w+)*\.seed_everything)$"
)
_OF_GENERATORS = ("manual_seed", "seed")
_BARE = ("random.seed", "numpy.random.seed", "torch.seed")  # without a number they ask the system
_DIFFERS = re.compile(
    r"^(time\.\w+|datetime\.(datetime|date)\.(now|today|utcnow)|os\.(getpid|urandom|times)|uuid\.uuid\d|secrets\.\w+|"
    r"random\.SystemRandom)$"
)
_WHY = "each process would seed itself: all ranks take rank 0's seed, and draw one split, one order, the same data"
_EARLY = (
    "each process seeds itself, before the ranks meet: each splits the data in its own way, or makes or orders them"
)
_DEPTH = 4


def torch(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Let all ranks seed alike what is drawn before the training: data, splits and orders.

    Before:
        import random, time, torch
        torch.manual_seed(int(time.time()))
        random.seed()
        order = torch.randperm(len(data))

    After:
        import random, time, torch
        torch.manual_seed(dl.broadcast(int(time.time())))
        random.seed()
        dl.reseed(alike=True)  # what follows all ranks draw alike, from rank 0's random numbers
        order = torch.randperm(len(data))
    """
    script = facts.script
    calls = [(call, script.name_of(call.func)) for call in script.calls]
    found = [(call, name) for call, name in calls if _SEEDS.search(name) or _of_generator(facts, call)]
    apart = samples.makers(facts) if found else set()
    for call, name in [*found, *((c, n) for c, n in calls if n == "torch.seed")]:
        if script.function_of(call) in apart or in_training(facts, call):
            continue
        given = call.args[0].value if call.args and dotted(call.args[0].value) != "None" else None
        differs = _differs(facts, given) if given is not None else name in _BARE or calls_method(call, "seed")
        if differs and before_init(facts, call):
            yield Doubt(call, _EARLY, "high", "seed in the script, behind its imports", name="order-differs")
        elif not differs:
            continue
        elif given is not None:
            yield Edit(given, _WHY, lambda seed: expression("torch/same", {"value": seed}, dl=facts.alias))
        elif name in _BARE:
            alike = statements("torch/alike", dl=facts.alias)
            yield Edit(script.line_of(script.statement_of(call)), _WHY, after=alike)
        else:
            of = script.code(call.func.value)  # type: ignore[attr-defined]
            yield Edit(call, _WHY, lambda _, of=of: cst.parse_expression(_same_seed(of, facts.alias)))  # type: ignore[misc]


def _same_seed(generator: str, dl: str) -> str:
    return f"{generator}.manual_seed({dl}.broadcast({generator}.seed()))"


def _of_generator(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` seeds a generator of PyTorch."""
    if not calls_method(call, *_OF_GENERATORS):
        return False
    made = [call.func.value, *(o.node for o in facts.flow.origins(call.func.value))]
    return any(isinstance(m, cst.Call) and facts.script.name_of(m.func) == "torch.Generator" for m in made)


def _differs(facts: ScriptFacts, value: cst.CSTNode, depth: int = _DEPTH) -> bool:
    """Tell whether ``value`` is computed from what is another number in each process."""
    for node in walk(value):
        if isinstance(node, cst.Call) and _DIFFERS.search(facts.script.name_of(node.func)):
            return True
        if isinstance(node, (cst.Name, cst.Attribute)) and depth:
            made = [o.node for o in facts.flow.origins(node) if o.node is not node]
            if any(_differs(facts, m, depth - 1) for m in made if isinstance(m, cst.BaseExpression)):
                return True
    return False
