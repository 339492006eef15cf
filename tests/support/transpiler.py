"""Small nets, transpiled, for the transpiler's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist import layers, optimizer
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.graph import Program, names, program_guard
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig

SERVERS = "ps0:6174,ps1:6174"


def built(build: Callable[[], Any]) -> tuple[Program, Program]:
    """Return the main and the startup Program that ``build`` makes."""
    main, startup = Program(), Program()
    with names.guard(), program_guard(main, startup):
        build()
    return main, startup


def regression(
    make: Callable[[], Any] = lambda: optimizer.SGD(learning_rate=0.01),
    width: int = 13,
    hidden: int = 0,
    **first: Any,
) -> Callable[[], None]:
    """Return what builds a linear regression; ``hidden`` units first, with ParamAttr ``first``."""

    def build() -> None:
        x = layers.data(name="x", shape=[width], dtype="float32")
        y = layers.data(name="y", shape=[1], dtype="float32")
        if hidden:
            x = layers.fc(input=x, size=hidden, param_attr=ParamAttr(**first))
        predicted = layers.fc(input=x, size=1)
        loss = layers.mean(layers.square_error_cost(input=predicted, label=y))
        make().minimize(loss)

    return build


def transpile(
    programs: tuple[Program, Program],
    trainer_id: int = 0,
    pservers: str = SERVERS,
    trainers: int = 2,
    config: dict[str, Any] | None = None,
    **arguments: Any,
) -> DistributeTranspiler:
    """Return a transpiler that has planned these programs."""
    transpiler = DistributeTranspiler(DistributeTranspilerConfig(**(config or {})))
    main, startup = programs
    transpiler.transpile(
        trainer_id,
        program=main,
        startup_program=startup,
        pservers=pservers,
        trainers=trainers,
        **arguments,
    )
    return transpiler
