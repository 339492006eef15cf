"""Arguments that layers, optimizers and other public things do not have, or need."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import hpcdist as fluid
from hpcdist.base.keywords import names_arguments_of, unknown_keyword

MODULES = (
    fluid.layers,
    fluid.optimizer,
    fluid.initializer,
    fluid.regularizer,
    fluid.clip,
    fluid.metrics,
)


def public(module: Any) -> dict[str, Callable[..., Any]]:
    """Give the functions and classes of a module that are ours, by name."""
    names = getattr(module, "__all__", [name for name in dir(module) if not name.startswith("_")])
    made = {f"{module.__name__}.{name}": getattr(module, name) for name in names}
    return {
        name: m
        for name, m in made.items()
        if getattr(m, "__module__", "").startswith("hpcdist.fluid.")
    }


PUBLIC = {name: made for module in MODULES for name, made in public(module).items()}
PUBLIC |= {"ParamAttr": fluid.ParamAttr, "Saver": fluid.checkpoint.Saver}


def takes_any(made: Callable[..., Any]) -> bool:
    if isinstance(made, type) and made.__init__ is object.__init__:  # Python says that it has none
        return True
    parameters = inspect.signature(made).parameters.values()
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


@pytest.mark.parametrize("name", [name for name, made in PUBLIC.items() if not takes_any(made)])
def test_each_says_that_it_has_no_such_argument(name):
    with pytest.raises(TypeError, match="has no argument 'no_such_thing', it takes"):
        PUBLIC[name](no_such_thing=1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: fluid.layers.fc(x, sizes=1), "layers.fc .*did you mean 'size'"),
        (lambda x: fluid.layers.fc(x, 1, activation="relu"), "did you mean 'act'"),
        (lambda x: fluid.layers.fc(x, out_features=1), "did you mean 'size'"),
        (lambda x: fluid.layers.dropout(x, p=0.5), "did you mean 'dropout_prob'"),
        (lambda x: fluid.optimizer.SGD(lr=0.1), "SGDOptimizer .*did you mean 'learning_rate'"),
        (lambda x: fluid.optimizer.Adam(beta_1=0.9), "did you mean 'beta1'"),
        (lambda x: fluid.ParamAttr(initialiser=None), "did you mean 'initializer'"),
        (lambda x: fluid.layers.fc(x, 1, act="rleu"), "did you mean 'relu'"),
        (lambda x: fluid.optimizer.SGD(), "^SGDOptimizer needs 'learning_rate'$"),
        (lambda x: fluid.layers.fc(x), "^layers.fc needs 'size'$"),
        (lambda x: fluid.layers.cross_entropy(), "^layers.cross_entropy needs 'input', 'label'$"),
    ],
)
def test_what_may_be_meant(call, said):
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        pytest.raises((TypeError, ValueError), match=said),
    ):
        call(fluid.data("x", [None, 4]))


def test_an_error_within_is_not_taken_for_a_missing_argument():
    @names_arguments_of("f")
    def outer(size):
        return inner()

    def inner(size):
        return size

    with pytest.raises(TypeError, match=r"inner\(\) missing 1 required"):
        outer(1)


def test_nothing_alike():
    said = unknown_keyword("f", ["self", "size"], "zzz")
    assert said == "f has no argument 'zzz', it takes size"


def test_a_fetched_name_that_is_misspelt():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        out = fluid.layers.fill_constant([1], "float32", 1.0)
        exe = fluid.Executor()
        with pytest.raises(ValueError, match=f"did you mean '{out.name}'"):
            exe.run(fluid.default_main_program(), fetch_list=[out.name.upper()])


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"feeds": {}}, "^Executor.run has no argument 'feeds', .*did you mean 'feed'"),
        ({"fetch": []}, "^Executor.run has no argument 'fetch', .*did you mean 'fetch_list'"),
        ({"retrun_numpy": True}, "did you mean 'return_numpy'"),
    ],
)
def test_what_may_be_meant_in_a_run(keywords, said):
    with pytest.raises(TypeError, match=said):
        fluid.Executor().run(fluid.Program(), **keywords)


def test_what_may_be_meant_in_a_save():
    with pytest.raises(TypeError, match="save has no argument 'model_paht'.*did you mean 'model_p"):
        fluid.save(fluid.Program(), model_paht="x")
