"""Values that a plain script changes between steps, by hand or by a Program: checked on all
ranks."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

from hpcdist.executor.scope import Scope, ScopeVariable
from hpcdist.graph.program import Program, ProgramCache


class SetValues:
    """The variables that were changed since the last step; ``some``: whether there are any."""

    def __init__(self) -> None:
        self.some = False
        self._by_hand: WeakSet[ScopeVariable] = WeakSet()
        self._by_programs: WeakSet[ScopeVariable] = WeakSet()
        self._given: WeakSet[ScopeVariable] = WeakSet()  # of these, to servers
        self._persistent: ProgramCache[list[str]] = ProgramCache()

    def note(self, variable: ScopeVariable) -> None:
        """Note that the script has set a variable."""
        self.some = True
        variable.elsewhere = None
        self._by_hand.add(variable)
        self._given.discard(variable)

    def note_run(self, program: Program, scope: Scope) -> None:
        """Note what a Program that does not train changes of what is kept from step to step."""
        for name in self._persistent.of(program, lambda: _persistent_names(program)):
            self.some = True
            variable = scope.var_or_new(name)
            variable.elsewhere = None  # until the next step the value here is what counts
            self._by_programs.add(variable)

    def forget_before(self, startup: Program, scope: Scope) -> None:
        """Forget what was changed before a startup Program that now sets it anew."""
        for name in _persistent_names(startup):
            variable = scope.find_var(name)
            if variable is not None:
                self._by_hand.discard(variable)
                self._by_programs.discard(variable)

    def to_give(self, scope: Scope) -> Sequence[ScopeVariable]:
        """Return, by name, those of a scope set by hand, but each once only."""
        found = [v for v in _of_scope(self._by_hand, scope) if v not in self._given]
        self._given.update(found)
        return found

    def take(self, scope: Scope) -> tuple[Sequence[ScopeVariable], Sequence[ScopeVariable]]:
        """Return, by name, those of a scope: set by hand, and all; forget them."""
        by_hand = _of_scope(self._by_hand, scope)
        everything = _of_scope(self._by_hand | self._by_programs, scope)
        for variable in everything:
            self._given.discard(variable)
            self._by_hand.discard(variable)
            self._by_programs.discard(variable)
        self.some = bool(self._by_hand or self._by_programs)
        return by_hand, everything


def _of_scope(variables: WeakSet[ScopeVariable], scope: Scope) -> list[ScopeVariable]:
    current = [variable for variable in variables if scope.find_var(variable.name) is variable]
    return sorted(current, key=lambda variable: variable.name)


def _persistent_names(program: Program) -> list[str]:
    block = program.global_block()
    written = {name for op in block.ops for name in op.output_arg_names}
    return sorted(n for n in written if n in block.vars and block.vars[n].persistable)
