"""``fluid.default_scope_funcs``: a stack of scopes of this thread, the first one global."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hpcdist.executor.scope import Scope, ScopeVariable, global_scope
from hpcdist.fluid.compat.public_names import public

_of_thread = threading.local()


def _stack() -> list[Scope]:
    if not hasattr(_of_thread, "scopes"):
        _of_thread.scopes = [global_scope()]
    scopes: list[Scope] = _of_thread.scopes
    return scopes


def get_cur_scope() -> Scope:
    """Return the innermost scope."""
    return _stack()[-1]


def enter_local_scope() -> None:
    """Make a scope within the innermost one."""
    _stack().append(get_cur_scope().new_scope())


def leave_local_scope() -> None:
    """Leave the innermost scope; its variables are gone."""
    _stack().pop()
    get_cur_scope().drop_kids()


def var(name: str) -> ScopeVariable:
    """Return a variable of the innermost scope, made if need be."""
    return get_cur_scope().var(name)


def find_var(name: str) -> ScopeVariable | None:
    """Return a variable of the innermost scope or of those around it; None if there is none."""
    return get_cur_scope().find_var(name)


def scoped_function(func: Callable[[], Any]) -> None:
    """Call a function in a separate scope."""
    enter_local_scope()
    try:
        func()
    finally:
        leave_local_scope()


__all__ = public(globals())
