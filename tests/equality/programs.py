"""A Program of chosen features, and the script that trains it: the same on every rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import hpcdist as fluid
from hpcdist import layers
from hpcdist.checkpoint import Checkpoint
from hpcdist.clip import ErrorClipByValue
from hpcdist.executor import executor
from hpcdist.graph import Program, Variable
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig, GeoSgdTranspiler
from tests.equality import features as f
from tests.equality.network import WIDTH, Net, Update, as_feed, batch, part

Values = dict[str, np.ndarray]
SAVED = 3  # the step after which a job is saved and another one goes on
LATE_S = 0.004
CHECKED_ROWS = 6


@dataclass
class Trained:
    """One Program that trains, the loss first of what is fetched."""

    main: Program
    test: Program
    fetch: list[Variable]
    parameters: list[Variable]
    average: Any


@dataclass
class Script:
    """All Programs of a choice of features."""

    choice: f.Choice
    startup: Program
    trained: list[Trained] = field(default_factory=list)


@dataclass(frozen=True)
class Rank:
    """Which rank of which job runs a script; where checkpoints are; which steps it makes."""

    index: int
    shape: f.Shape
    serves: bool
    root: Path
    begin: int = 0
    end: int | None = None
    alone: bool = False
    saves: bool = True


class AfterSteps(Exception):
    """A job raised after its first step: what is refused is to be refused before."""


def build(choice: f.Choice) -> Script:
    """Return the Programs of a choice; HpcdistError if they cannot be built."""
    startup = Program()
    startup.random_seed = 3
    script = Script(choice, startup)
    programs = f.PROGRAMS.of(choice)
    with fluid.unique_name.guard():
        for k in range(1 if programs == "one" else 2):
            shares = programs == "sharing in turns"
            script.trained.append(_build(choice, startup, "trunk" if shares else f"trunk_{k}"))
    return script


def _build(choice: f.Choice, startup: Program, trunk: str) -> Trained:
    main = Program()
    net = Net(f.DTYPE.of(choice))
    clip, (whole, one) = f.CLIP.of(choice), f.REGULARIZER.of(choice)
    with fluid.program_guard(main, startup):
        attr = fluid.ParamAttr(name=trunk, regularizer=one)
        h = layers.fc(net.input("x"), WIDTH, act="tanh", param_attr=attr)
        if isinstance(clip, ErrorClipByValue):
            h._set_error_clip(clip)
        net.kept.append(h)
        for feature in f.HIDDEN:
            h = feature.of(choice)(h, net)
        net.kept.append(h)
        guess = layers.fc(h, 1)
        cost = layers.square_error_cost(guess, net.input("y"))
        loss = f.LOSS.of(choice)(cost)
        metrics = f.METRIC.of(choice)(net, h)
        fetch = [loss, guess, layers.reduce_max(cost), *metrics]
        second = layers.mean(layers.square(layers.fc(h, 1)))
        apart = layers.mean(layers.square(layers.fc(net.input("x"), 1, act="tanh")))
        test = main.clone(for_test=True)
        how: dict[str, Any] = {"regularization": whole}
        if clip is not None and not isinstance(clip, ErrorClipByValue):
            how["grad_clip"] = clip
        update = Update(f.SCHEDULE.of(choice)(), how)

        def minimize(value: Variable, **only: Any) -> None:
            chosen = f.OPTIMIZER.of(choice)(update)
            wrap, process = f.STRATEGY.of(choice), f.PROCESSED.of(choice)
            optimizer = wrap(chosen, net) if wrap else chosen
            if process is None:
                optimizer.minimize(value, **only)
            else:
                optimizer.apply_gradients(process(optimizer.backward(value, **only)))

        MINIMIZE[f.MINIMIZE.of(choice)](minimize, main, loss, second, apart)
        make_average = f.AVERAGE.of(choice)
        average = make_average() if make_average else None
    if f.RUN.of(choice) == "memory_optimize":
        fluid.memory_optimize(main, skip_opt_set={var.name for var in fetch})
    return Trained(main, test, fetch, _dense(main, test), average)


def _parts(minimize: Callable[..., None], main: Program, loss: Variable, *_: Variable) -> None:
    names = [p.name for p in main.all_parameters()]
    minimize(loss, parameter_list=names[::2])
    minimize(loss, parameter_list=names[1::2])


def _two(minimize: Callable[..., None], main: Program, loss: Variable, _: Any, other: Any) -> None:
    minimize(loss)
    minimize(other)


def _twice(
    minimize: Callable[..., None], main: Program, loss: Variable, other: Any, _: Any
) -> None:
    minimize(loss)
    minimize(other)


MINIMIZE: dict[str, Callable[..., None]] = {
    "once": lambda minimize, main, loss, *_: minimize(loss),
    "parts": _parts,
    "two losses": _two,
    "twice": _twice,
}


def _dense(main: Program, test: Program) -> list[Variable]:
    """Return the parameters that a test program can fetch: servers keep rows of sparse tables."""
    sparse = {
        name
        for op in main.global_block().ops
        if op.attrs.get("is_sparse")
        for name in op.input("W")
    }
    kept = test.global_block().vars
    return [p for p in main.all_parameters() if p.name in kept and p.name not in sparse]


def train(script: Script, rank: Rank) -> list[Values]:
    """Return what was fetched, by name: for every step, for the test, and of the checkpoint."""
    choice, found, made = script.choice, [], 0
    exe = fluid.Executor()
    mains = _transpiled(script, rank, exe)
    exe.run(script.startup)
    scope = executor.global_scope()
    try:
        if rank.begin:
            for k, one in enumerate(script.trained):
                where = str(rank.root / f"program-{k}")
                fluid.checkpoint.restore(exe, where, one.main, scope=scope)
        rows = f.BATCHES.of(choice)
        for step in range(rank.begin, rank.end or len(rows)):
            _be_late(choice, rank)
            one = script.trained[step % len(script.trained)]
            main = mains[step % len(script.trained)]
            _set_rate(choice, scope, step)
            made = (step - rank.begin) // len(script.trained)  # by this Program
            values = exe.run(main, feed=_feed(choice, one, step, rank), fetch_list=one.fetch)
            made += 1
            found.append(_named(f"step {step}", one.fetch, values))
            if f.EVALUATION.of(choice):
                found.append(_test(exe, one, choice, f"test after step {step}", rank))
        if rank.end:
            if rank.saves:
                _save(exe, script, rank, scope)
            return found
        for k, one in enumerate(script.trained):
            found.append(_test(exe, one, choice, f"test {k}", rank))
        _save(exe, script, rank, scope)
        found += [saved_values(rank.root / f"program-{k}") for k in range(len(script.trained))]
    except fluid.HpcdistError as error:
        if made:
            raise AfterSteps(f"after {made} steps: {error}") from error
        raise
    return found


def _transpiled(script: Script, rank: Rank, exe: Any) -> list[Any]:
    """Return what is run to train; a server of a script that transpiles serves, and ends."""
    fields = f.MODE.of(script.choice).fields
    if fields is not None and not rank.alone:
        return [_by_script(script, rank, exe, dict(fields))]
    mains: list[Any] = [one.main for one in script.trained]
    if f.RUN.of(script.choice) == "compiled":
        names = [one.fetch[0].name for one in script.trained]
        mains = [
            fluid.CompiledProgram(m).with_data_parallel(loss_name=n) for m, n in zip(mains, names)
        ]
    return mains


def _by_script(script: Script, rank: Rank, exe: Any, fields: dict[str, Any]) -> Program:
    (one,) = script.trained
    config = DistributeTranspilerConfig()
    for name, value in fields.items():  # sync_mode first
        setattr(config, name, value)
    made = (GeoSgdTranspiler if "geo_sgd_need_push_nums" in fields else DistributeTranspiler)(
        config
    )
    endpoints = [f"ps{k}:6174" for k in range(rank.shape.servers)]
    trainer = 0 if rank.serves else rank.index
    made.transpile(
        trainer,
        one.main,
        ",".join(endpoints),
        rank.shape.trainers,
        sync_mode=fields["sync_mode"],
        startup_program=script.startup,
    )
    if rank.serves:
        main, startup = made.get_pserver_programs(endpoints[rank.index])
        exe.run(startup)
        exe.run(main)
        raise SystemExit(0)
    program = made.get_trainer_program()
    if f.RUN.of(script.choice) == "compiled":
        return fluid.CompiledProgram(program).with_data_parallel(loss_name=one.fetch[0].name)
    return program


def _feed(choice: f.Choice, one: Trained, step: int, rank: Rank) -> dict[str, Any]:
    rows = f.BATCHES.of(choice)[step]
    if f.MODE.of(choice).local:
        # A trainer that feeds its own feeds some, also where a job goes on with more trainers.
        rows = max(rows, *f.TRAINERS.levels.values())
    fed = batch(step, rows, f.DTYPE.of(choice))
    if f.MODE.of(choice).local and not rank.alone:
        fed = part(fed, rank.index, rank.shape.trainers)
    return as_feed(fed, set(one.main.global_block().vars))


def _be_late(choice: f.Choice, rank: Rank) -> None:
    late = f.LATE.of(choice)
    if late is not None and not rank.alone and late % rank.shape.trainers == rank.index:
        time.sleep(LATE_S)


def _set_rate(choice: f.Choice, scope: Any, step: int) -> None:
    if choice.get("schedule") == "set by the script":
        rate = np.array([0.1 / (1 + step)], "float32")
        scope.var("own_rate").get_tensor().set(rate, fluid.CPUPlace())


def _test(exe: Any, one: Trained, choice: f.Choice, name: str, rank: Rank) -> Values:
    """Run the test program on a batch of its own, with averages where there are some."""
    fed = batch(99, CHECKED_ROWS, f.DTYPE.of(choice))  # whole: every trainer computes it by itself
    feed = as_feed(fed, set(one.test.global_block().vars))
    fetch = [*one.fetch, *one.parameters]
    if one.average is None:
        return _named(name, fetch, exe.run(one.test, feed=feed, fetch_list=fetch))
    with one.average.apply(exe):
        return _named(name, fetch, exe.run(one.test, feed=feed, fetch_list=fetch))


def _named(where: str, variables: list[Variable], values: list[Any]) -> Values:
    return {f"{where}: {var.name}": np.array(v) for var, v in zip(variables, values)}


def _save(exe: Any, script: Script, rank: Rank, scope: Any) -> None:
    for k, one in enumerate(script.trained):
        where = str(rank.root / f"program-{k}")
        step = rank.end or len(f.BATCHES.of(script.choice))
        fluid.checkpoint.save(exe, where, step, one.main, scope=scope)


def saved_values(directory: Path) -> Values:
    """Return all that a checkpoint holds, by name; rows of tables in the order of their ids."""
    found: Values = {}
    newest = fluid.checkpoint.latest(directory)
    with Checkpoint(newest), h5py.File(Path(newest) / "manifest.h5") as file:

        def take(name: str, value: Any) -> None:
            if isinstance(value, h5py.Dataset) and not name.startswith("@checkpoint"):
                found[f"saved: {name}"] = value[...]

        file.visititems(take)
    for name in [name for name in found if name.endswith("/ids")]:
        order = np.argsort(found[name])
        table = name.removesuffix("ids")
        for other in [other for other in found if other.startswith(table)]:
            found[other] = found[other][order]
    return found
