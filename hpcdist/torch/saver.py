"""Checkpoints of torch jobs: modules, optimizers, tables and random numbers in one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

from hpcdist import checkpoint, runtime
from hpcdist.checkpoint import Checkpoint, Restored, latest
from hpcdist.checkpoint.layout import MANIFEST
from hpcdist.checkpoint.ranks import agreed, peers_here
from hpcdist.checkpoint.saver import BEST
from hpcdist.errors import CheckpointError, HpcdistError
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.executor import Executor
from hpcdist.executor.position import here
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program
from hpcdist.plain_data import typed
from hpcdist.torch.facts import rate_name
from hpcdist.torch.job import job
from hpcdist.torch.states import (
    SavedTensor,
    array_type,
    as_array,
    as_tensor,
    put_together,
    split_state,
    state_from,
    state_of,
    tables_in,
)
from hpcdist.torch.tables import tables

STATES = "torch/states"  # the variable of plain data, as UTF-8


class Saver(checkpoint.Saver):
    """The checkpoints of a training loop of torch's; see `hpcdist.checkpoint.Saver`.

    ``objects`` by name: modules, optimizers, schedules, samplers, whatever has a ``state_dict``.
    Modules are saved with their tables, wherever the rows are; beside them the random numbers of
    python, numpy and torch. It does not matter how many trainers or servers had saved what is
    restored, nor for tables whether there were servers. Of what differs between trainers, such as
    running means under DistributedDataParallel, trainer 0's is saved; plain data and random numbers
    each trainer's own.
    """

    def __init__(self, dirname: str | Path, objects: Mapping[str, Any], **options: Any) -> None:
        """``options``: every, every_s, keep, best, on_nan, compression, single_file."""
        if runtime.current() is None and job().transport.size > 1:
            raise CheckpointError(
                "several ranks save together only under our launcher: mpirun -n N python -m "
                "hpcdist --as-torchrun train.py"
            )
        job()  # servers serve from here on
        unknown = sorted(options.keys() & {"reader", "main_program", "scope"})
        if unknown:
            raise CheckpointError(f"{unknown[0]}: is for Programs; give objects with a state_dict")
        missing = set(tables().names) - tables_in(objects)
        if missing:
            raise CheckpointError(
                f"table {min(missing)!r} is in none of the given modules, so it would not be saved"
            )
        self._objects = dict(objects)
        self._scope = Scope()
        super().__init__(
            Executor(CPUPlace()), dirname, main_program=Program(), scope=self._scope, **options
        )

    def restore(self, *, best: bool = False) -> Restored | None:
        """Take up the latest checkpoint, or the best; None if there is none yet. Collective."""
        directory = self._dirname / BEST if best else self._dirname
        path, plain = _met(lambda: _chosen(directory))[0]
        if path is None:
            return None
        saved: _JobStates = typed(_JobStates, plain)
        tables().pause()
        names = self._objects.keys()
        if names != saved.objects.keys():
            raise CheckpointError(
                f"{path}: holds {', '.join(sorted(saved.objects))}, expected "
                f"{', '.join(sorted(names))}"
            )
        trainers = saved.trainers
        me = peers_here().trainer
        trainer = trainers[me] if me < len(trainers) else trainers[0]
        tensors: dict[str, SavedTensor] = {}
        states = {n: state_from(trainer.get(n, saved.objects[n]), tensors) for n in names}
        arrays = {name: np.empty(*array_type(tensor)) for name, tensor in tensors.items()}
        self._declare({**arrays, STATES: encoded(plain)})
        restored = super().restore(best=best)
        here.script_step = self.step
        for name, obj in self._objects.items():
            state = put_together(states[name], lambda of: as_tensor(arrays[of.name], of))
            _load(obj, state, f"{path}: {name!r}")
        tables().restored()
        return restored

    def after_step(self, extra: object = None) -> None:
        """Count a step, save if it is time, stop if all are warned; see the base class."""
        super().after_step(extra)
        here.first_step_done()  # from here on the job is started again if it fails

    def _save(self, directory: Path, keep: int, extra: object, *, asynchronous: bool) -> bool:
        tables().pause()
        tensors: dict[str, torch.Tensor] = {}
        objects, plain = {}, {}
        for name, obj in self._objects.items():
            before = len(tensors)
            objects[name] = split_state(name, state_of(name, obj), tensors)
            if len(tensors) == before:
                plain[name] = objects[name]
        arrays = {name: as_array(tensor) for name, tensor in tensors.items() if tensor.numel()}
        digests = {name: xxhash.xxh3_64_hexdigest(array.data) for name, array in arrays.items()}
        local: Any = {"objects": objects, "plain": plain, "digests": digests}
        gathered = _met(lambda: local)
        record = {
            "objects": gathered[0]["objects"],
            "trainers": [one["plain"] for one in gathered],
        }
        for name in sorted(arrays):
            per_trainer = [one["digests"].get(name) for one in gathered]
            if None in per_trainer:
                raise CheckpointError(f"{name!r} is in the state of some trainers, not of all")
            if len(set(per_trainer)) > 1:
                arrays[name] = arrays[name].copy()
                peers_here().group.broadcast(arrays[name])
        self._declare({**arrays, STATES: encoded(record)})
        saved = super()._save(directory, keep, extra, asynchronous=asynchronous)
        here.first_step_done()
        return saved

    def _declare(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Let the Program of checkpoints have these variables, the tables, and their rates."""
        served, settled = tables().served, tables().facts
        program = Program() if served is None else served.program.clone()
        block = program.global_block()
        if served is None and settled is not None:
            for name, table in tables().local.items():
                block.create_var(name, shape=[-1, table.dim], dtype="float32", persistable=True)
                self._scope.var(name).hold(table)
            numbers = settled.numbers | {rate_name(k): r for k, r in enumerate(tables().rates)}
            arrays = {**arrays, **{n: np.array([v], np.float32) for n, v in numbers.items()}}
        if served is not None and served.moves_nothing:
            for k, rate in enumerate(tables().rates):  # which the Program says, and no server has
                self._scope.var(rate_name(k)).hold(np.array([rate], np.float32))
        for name, parameter in tables().served_parameters.items():
            self._scope.var(name).hold(parameter.detach().numpy())
        modules = tuple(
            f"{name}/" for name, obj in self._objects.items() if isinstance(obj, nn.Module)
        )
        for name, array in arrays.items():
            facts: dict[str, Any] = {"shape": list(array.shape), "dtype": array.dtype.name}
            if name.startswith(modules):
                block.create_parameter(name, **facts)
            else:
                block.create_var(name, persistable=True, **facts)
            self._scope.var(name).hold(array)
        self._program = program


def _met(compute: Callable[[], Any]) -> list[Any]:
    """Do something on every trainer; return all results, when all have come within the deadline."""

    def gather(data: bytes) -> list[bytes]:
        awaited = "the other trainers' part of a checkpoint"
        return [*tables().group.allgather_bytes(data, job().deadline_s, awaited)]

    return agreed(gather, compute, "trainer")


@dataclass(frozen=True)
class _JobStates:
    """What a checkpoint says of objects: states as `split_state` returns them.

    ``trainers``: each one's states of objects without tensors.
    """

    objects: Mapping[str, Any]
    trainers: tuple[Mapping[str, Any], ...]


def _chosen(directory: Path) -> list[Any]:
    """Return trainer 0's choice of a checkpoint, and what it says of objects; None without one."""
    if peers_here().trainer:
        return [None, None]
    path = directory if (directory / MANIFEST).exists() else latest(directory)
    if path is None:
        return [None, None]
    with Checkpoint(path) as checkpoint:
        if not checkpoint.has(STATES):
            raise CheckpointError(f"{path}: was not saved by hpcdist.torch.Saver")
        try:
            record = json.loads(checkpoint.read(STATES).tobytes())
            _check(typed(_JobStates, record), checkpoint)
        except (ValueError, KeyError, RecursionError, RuntimeError) as error:
            raise CheckpointError(f"{path}: malformed states of objects ({error!r})") from None
    return [str(path), record]


def _check(record: _JobStates, checkpoint: Checkpoint) -> None:
    """Raise unless states can be combined from this checkpoint; it may be anybody's."""
    tensors: dict[str, SavedTensor] = {}
    for state in record.objects.values():
        state_from(state, tensors)
    for tensor in tensors.values():
        saved = checkpoint.saved(tensor.name)
        if tensor.name == STATES or (saved.shape, saved.dtype) != array_type(tensor):
            raise ValueError(f"{tensor.name!r:.80} is {saved.dtype}{list(saved.shape)}")
    if not record.trainers:
        raise ValueError("no trainers")
    for trainer in record.trainers:
        of_trainer: dict[str, SavedTensor] = {}
        for state in trainer.values():
            state_from(state, of_trainer)
        if of_trainer:
            raise ValueError(f"{min(of_trainer)!r:.80} is of one trainer only")


def _load(obj: Any, state: Any, name: str) -> None:
    """Load an object's state; CheckpointError for whatever exception it raises."""
    try:
        obj.load_state_dict(state)
    except HpcdistError:
        raise
    except Exception as error:
        raise CheckpointError(f"{name} cannot load its saved state: {error!r}") from error


def encoded(record: object) -> np.ndarray:
    """Return plain data as bytes of JSON, shape [n], uint8."""
    return np.frombuffer(bytearray(json.dumps(record).encode()), np.uint8)
