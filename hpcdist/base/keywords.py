"""Arguments that are unknown to a function, or missing: a TypeError names it and them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hpcdist.base.errors import GraphTypeError
from hpcdist.base.nearest import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
# What other frameworks call the same, or what people remember instead.
_SAME = (
    {"learning_rate", "lr", "rate"},
    {"act", "activation"},
    {"size", "units", "out_features", "hidden_size", "num_units"},
    {"num_filters", "filters", "out_channels"},
    {"filter_size", "kernel_size"},
    {"pool_size", "kernel_size"},
    {"dropout_prob", "p", "rate"},
    {"param_attr", "weight_attr", "kernel_initializer", "weight_initializer"},
    {"bias_attr", "bias", "use_bias", "bias_initializer"},
    {"axis", "dim"},
    {"keep_dim", "keepdim", "keepdims"},
    {"regularization", "weight_decay"},
    {"beta1", "beta_1"},
    {"beta2", "beta_2"},
    {"epsilon", "eps"},
    {"dtype", "type"},
    {"loc", "mean"},
    {"scale", "std", "stddev"},
    {"batch_size", "batch"},
    {"feed", "feeds", "feed_dict", "inputs"},
    {"fetch_list", "fetch", "fetches", "outputs"},
)


def unknown_keyword(name: str, parameters: Iterable[str], keyword: str) -> str:
    """Say that ``name`` has no such argument, which ones it has, and which may be meant. Pure."""
    takes = [parameter for parameter in parameters if parameter != "self"]
    near = _same(keyword, takes) or did_you_mean(keyword, takes)
    return f"{name} has no argument {keyword!r}, it takes {', '.join(takes) or 'none'}{near}"


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of what a Python function takes, in less time than `inspect.signature`.

    A program wraps some 800 functions while it is imported.
    """
    code = inspect.unwrap(function).__code__
    return [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]


@functools.cache
def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of what a Python function takes, by name."""
    plain: Any = inspect.unwrap(function)
    code, defaults = plain.__code__, plain.__defaults__ or ()
    given = dict(zip(code.co_varnames[: code.co_argcount][::-1], defaults[::-1]))
    return {**given, **(plain.__kwdefaults__ or {})}


def names_arguments(function: F, name: str = "") -> F:
    """Wrap a function to answer unknown and missing arguments by a GraphTypeError that names it.

    Without a ``name`` it is a constructor, and errors call it by its class.
    """
    plain: Any = inspect.unwrap(function)
    if plain.__code__.co_flags & inspect.CO_VARKEYWORDS:
        return function
    order = parameters_of(function)
    known = set(order)
    required = order[: plain.__code__.co_argcount - len(plain.__defaults__ or ())]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= known:
            unknown = next(key for key in kwargs if key not in known)
            raise GraphTypeError(unknown_keyword(name or type(args[0]).__name__, order, unknown))
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            of_the_call = error.__traceback__ is not None and error.__traceback__.tb_next is None
            missing = required[len(args) :] if of_the_call else ()
            if missing := [key for key in missing if key not in kwargs]:
                called = name or type(args[0]).__name__
                raise GraphTypeError(f"{called} needs {', '.join(map(repr, missing))}") from None
            raise

    return call  # type: ignore[return-value]


def names_arguments_of(name: str) -> Callable[[F], F]:
    """Decorate a function that messages call ``name`` with `names_arguments`."""
    return lambda function: names_arguments(function, name)


def name_arguments_in(module: str) -> None:
    """Wrap the functions of a module so, and the constructors of its classes."""
    names = vars(sys.modules[module])
    for name, made in [*names.items()]:
        if inspect.isfunction(made) and made.__module__ == module and not name.startswith("_"):
            names[name] = names_arguments(made, name)
        elif isinstance(made, type) and made.__module__.startswith("hpcdist."):
            for cls in made.__mro__:
                init = vars(cls).get("__init__")
                if inspect.isfunction(init) and not hasattr(init, "__wrapped__"):
                    cls.__init__ = names_arguments(init)  # type: ignore[misc]


def _same(keyword: str, parameters: Iterable[str]) -> str:
    for alike in _SAME:
        if keyword in alike:
            for parameter in parameters:
                if parameter in alike:
                    return f"; did you mean {parameter!r}?"
    return ""
