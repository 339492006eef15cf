"""Checkpoints of torch jobs: modules, optimizers, tables and random numbers in one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler

from hpcdist import runtime
from hpcdist.base.errors import CheckpointError, NotFiniteError
from hpcdist.base.plain_data import typed
from hpcdist.base.trace.position import here
from hpcdist.checkpoint import Checkpoint, Restored, latest
from hpcdist.checkpoint.divided import OWN, SAME
from hpcdist.checkpoint.layout import MANIFEST
from hpcdist.checkpoint.metadata import PARAMETER, RATE
from hpcdist.checkpoint.ranks import agreed, peers_here
from hpcdist.checkpoint.restoring import SAVED
from hpcdist.checkpoint.saver import BEST, LoopSaver
from hpcdist.ps.facts import rate_name
from hpcdist.runtime.kept.declared import KeptValues
from hpcdist.torch.job import job
from hpcdist.torch.models import needs_launcher, tables_of
from hpcdist.torch.published import Publisher, kept_tables
from hpcdist.torch.states import (
    AS_THEY_ARE,
    SavedTensor,
    array_type,
    as_array,
    as_tensor,
    check_fits,
    check_has_state,
    digest_of,
    encoded,
    individually,
    load_state,
    not_finite,
    put_together,
    split_state,
    state_from,
    state_of,
    tables_in,
    take,
)
from hpcdist.torch.tables import Tables, all_in_use, open_tables

STATES = "torch/states"  # the variable of plain data, as UTF-8
TRAINED = (nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)  # change in steps

logger = logging.getLogger("hpcdist.checkpoint")


class Saver(LoopSaver):
    """The checkpoints of a training loop of torch's; see `hpcdist.checkpoint.Saver`.

    ``objects`` by name: modules, optimizers, schedules, samplers, whatever has a ``state_dict``.
    Modules are saved with their tables, wherever the rows are; beside them the random numbers of
    python, numpy and torch. It does not matter how many trainers or servers had saved what is
    restored, nor for tables whether there were servers. What differs between trainers, such as
    running means, samplers and random numbers, is saved of each: as many go on with it, others
    with trainer 0's tensors. Every trainer makes it, and calls its methods after the same steps.

    >>> import tempfile
    >>> model = torch.nn.Linear(4, 1)
    >>> with hpcdist.torch.Saver(tempfile.mkdtemp(), {"model": model}, every=2) as saver:
    ...     resumed = saver.restore()
    ...     for step in range(saver.step, 3):
    ...         saver.after_step()
    >>> saver.step
    3
    """

    def __init__(self, dirname: str | Path, objects: Mapping[str, Any], **options: Any) -> None:
        """``options``: every, every_s, keep, best, on_nan, compression, single_file, publish, ...

        CheckpointError for what has no ``state_dict``, and for a table that is in no module.
        """
        needs_launcher("save")  # servers serve from here on
        unknown = sorted(options.keys() & {"reader", "main_program", "scope"})
        if unknown:
            raise CheckpointError(f"{unknown[0]}: is for Programs; give objects with a state_dict")
        self._tables = _one_model(objects)
        missing = set(self._tables.names) - tables_in(objects)
        if missing:
            raise CheckpointError(
                f"table {min(missing)!r} is in none of the given modules, so it would not be saved"
            )
        if runtime.server_count() and not (self._tables.names or self._tables.served_parameters):
            raise CheckpointError(
                "the job has servers, and nothing is on them: make tables and optimizers before "
                "the Saver, or start the job without --pservers"
            )
        for name, obj in objects.items():
            check_has_state(name, obj)
        self._objects = dict(objects)
        self._warned = False
        self._infinite = frozenset(  # from the beginning, such as masks
            f"{name}/{key}"
            for name, obj in objects.items()
            if isinstance(obj, nn.Module)
            for key, buffer in obj.named_buffers(remove_duplicate=False)
            if not is_lazy(buffer) and not_finite(buffer)
        )
        self._state = kept_tables(self._tables)  # what is saved, or restored
        super().__init__(lambda: self._state, dirname, **options)

    def restore(
        self, *, best: bool = False, partial: bool = False, rates: str = SAVED
    ) -> Restored | None:
        """Take up the latest checkpoint, or the best; None if there is none yet. Collective.

        ``partial`` and ``rates`` are for Programs: modules take what fits by `load_state_dict`.
        CheckpointError, on all trainers, for a model or optimizer that differs from the saved one.
        """
        if partial or rates != SAVED:
            raise CheckpointError(
                "restore: partial= and rates= are for Programs; load what fits into modules with "
                "load_state_dict(..., strict=False), and set rates in the optimizer's groups"
            )
        directory = self._dirname / BEST if best else self._dirname
        path, plain = _on_all_trainers(lambda: _chosen(directory))[0]
        if path is None:
            return None
        saved: _JobStates = typed(_JobStates, plain)
        self._tables.pause()
        names = self._objects.keys()
        if names != saved.objects.keys():
            raise CheckpointError(
                f"{path}: holds {', '.join(sorted(saved.objects))}, expected "
                f"{', '.join(sorted(names))}"
            )
        me, trainers = peers_here().trainer, peers_here().trainers
        tensors: dict[str, SavedTensor] = {}
        states = saved.of_trainer(me, trainers, tensors)

        def check() -> None:
            for name, obj in self._objects.items():
                take(f"{path}: {name!r}", check_fits, obj, states[name])

        def load() -> None:
            for name, obj in self._objects.items():
                state = put_together(states[name], lambda of: as_tensor(arrays[of.name], of))
                take(f"{path}: {name!r}", load_state, obj, state)

        _on_all_trainers(check)
        arrays = {name: np.empty(*array_type(tensor)) for name, tensor in tensors.items()}
        read = {saved.variable(name, me, trainers): array for name, array in arrays.items()}
        self._state = self._declared({**read, STATES: encoded(plain)})
        restored = super().restore(best=best)
        here.script_step = self.step
        with torch.inference_mode(False):  # whose tensors no later step could change
            _on_all_trainers(load)
        self._tables.restored()
        return restored

    def after_step(self, extra: object = None) -> None:
        """Count a step, save if it is time, stop if all are warned; see the base class."""
        self._warn_of_rows_ahead()
        super().after_step(extra)
        here.first_step_done()  # from here on the job is started again if it fails

    def _save(self, directory: Path, keep: int, extra: object, *, asynchronous: bool) -> bool:
        saved = super()._save(directory, keep, extra, asynchronous=asynchronous)
        here.first_step_done()
        return saved

    def _warn_of_rows_ahead(self) -> None:
        """Say once that a loader's state is that of after the next batch, and might be kept."""
        if self._warned or not self._tables.announced.next:
            return
        self._warned = True
        others = [name for name, obj in self._objects.items() if not isinstance(obj, TRAINED)]
        if others and peers_here().trainer == 0:
            logger.warning(
                "rows_ahead has read a batch that is not trained yet: if %s says which batches "
                "have been read, a job that resumes leaves it out; begin at saver.step instead",
                " or ".join(map(repr, others)),
            )

    def _publisher_to(self, dirname: str | Path, facts: Mapping[str, Any]) -> Publisher:
        having = [obj for obj in self._objects.values() if any(t.names for t in tables_of([obj]))]
        if not having:
            raise CheckpointError("publish: none of the objects has a table")
        return Publisher(dirname, having[0], **facts)

    def _to_save(self) -> KeptValues:
        """Gather and return all states. Collective. NotFiniteError as `checkpoint.save`'s."""
        self._warn_of_rows_ahead()
        self._tables.pause()
        arrays: dict[str, np.ndarray] = {}
        everyone = _on_all_trainers(lambda: self._local_states(arrays))
        for k, local in enumerate(everyone):
            if local["not_finite"] is not None:
                raise NotFiniteError(f"trainer {k}: {local['not_finite']!r} holds NaN or infinity")
        (objects, digests), *_ = of_all = [(one["objects"], one["digests"]) for one in everyone]
        for k, (_, others) in enumerate(of_all):
            for name in sorted(digests.keys() | others.keys()):
                of_first, of_other = (of.get(name, ["nothing"])[0] for of in (digests, others))
                if of_first != of_other:
                    raise CheckpointError(
                        f"{name!r} is {of_first} on trainer 0, {of_other} on trainer {k}: a state "
                        "must have the same tensors on all trainers"
                    )
        # What servers keep is theirs, though trainers have received it after different steps.
        served = self._served()
        individual = {
            name
            for name, digest in digests.items()
            if name not in served and any(others[name] != digest for _, others in of_all)
        }
        for name in sorted(individual):
            for k in range(len(everyone)):
                if individually(name, k) in digests:
                    raise CheckpointError(f"{individually(name, k)!r}: rename this key")
        record = {
            "objects": objects,
            "trainers": [
                {name: state for name, state in own.items() if state != objects[name]}
                for own, _ in of_all
            ],
            "individual": sorted(individual),
        }
        self._state = self._declared({**arrays, STATES: encoded(record)}, individual)
        return self._state

    def _local_states(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return this trainer's states of its objects; ``arrays`` get the values of tensors."""
        tensors: dict[str, torch.Tensor] = {}
        try:
            objects = {
                n: split_state(n, state_of(obj), tensors) for n, obj in self._objects.items()
            }
        except RecursionError:
            raise CheckpointError("a state that contains itself cannot be saved") from None
        if STATES in tensors:
            raise CheckpointError(f"{STATES!r} is the name of what a checkpoint says: rename a key")
        arrays |= {name: as_array(tensor) for name, tensor in tensors.items() if tensor.numel()}
        # `checkpoint.save` looks at parameters in float32 and float64.
        looked_at = (
            name
            for name, tensor in tensors.items()
            if name.startswith(self._prefixes(torch.optim.Optimizer))
            or (name.startswith(self._prefixes(nn.Module)) and tensor.dtype not in AS_THEY_ARE)
        )
        wrong = (n for n in looked_at if n not in self._infinite and not_finite(tensors[n]))
        return {
            "objects": objects,
            "digests": {name: digest_of(array) for name, array in arrays.items()},
            "not_finite": next(wrong, None),
        }

    def _served(self) -> set[str]:
        """Return the names of the tensors here that servers keep."""
        served = {id(parameter) for parameter in self._tables.served_parameters.values()}
        return {
            f"{name}/{key}"
            for name, obj in self._objects.items()
            if isinstance(obj, nn.Module)
            for key, parameter in obj.named_parameters(remove_duplicate=False)
            if id(parameter) in served
        }

    def _prefixes(self, kind: type) -> tuple[str, ...]:
        """Return the prefixes of the names of some objects' tensors."""
        return tuple(f"{name}/" for name, obj in self._objects.items() if isinstance(obj, kind))

    def _declared(
        self, arrays: Mapping[str, np.ndarray], individual: Collection[str] = ()
    ) -> KeptValues:
        """Return these arrays, with the tables and their rates, as checkpoints keep them.

        Of those that are ``individual`` each trainer has other values.
        """
        kept, served, settled = kept_tables(self._tables), self._tables.served, self._tables.facts
        modules = self._prefixes(nn.Module)
        parameters = (n for n in arrays if n.startswith(modules) and n not in self._infinite)
        roles = dict.fromkeys(parameters, PARAMETER)
        own = dict.fromkeys(individual, SAME)
        rates = {rate_name(k): rate for k, rate in enumerate(self._tables.rates)}
        numbers: Mapping[str, float] = {}
        if served is None and settled is not None:
            numbers = settled.numbers | rates
        served_here: dict[str, np.ndarray] = {}
        if served is not None and served.moves_nothing:  # trainers train by themselves
            numbers = rates
            roles |= dict.fromkeys(rates, RATE)
            served_here = {n: p.detach().numpy() for n, p in self._tables.served_parameters.items()}
            roles |= dict.fromkeys(served_here, PARAMETER)
            own |= dict.fromkeys(served_here, OWN)
        of_numbers = {n: np.array([value], np.float32) for n, value in numbers.items()}
        return replace(
            kept,
            arrays={**served_here, **arrays, **of_numbers},
            roles=roles,
            individually=own,
            elsewhere=self._tables.served_parameters.keys(),
        )


def _one_model(objects: Mapping[str, Any]) -> Tables:
    """Return the `Tables` of the objects' model; CheckpointError if they are of several."""
    found = tables_of(objects.values())
    if len(found) > 1:
        names = ", ".join(name for tables in found for name in tables.names)
        raise CheckpointError(
            f"tables {names}: some were made after others had been looked up: save each model by a "
            "Saver of its own, or make all tables before the first look-up"
        )
    # Where none of them has a table, what other models have would not be saved.
    others = [tables for tables in all_in_use() if tables.names or tables.served_parameters]
    return (found or others or [open_tables()])[0]


def _on_all_trainers(compute: Callable[[], Any]) -> list[Any]:
    """Do something on every trainer; return all results, when all have come within the deadline."""

    def gather(data: bytes) -> list[bytes]:
        awaited = "the other trainers' part of a checkpoint"
        return [*job().rows.allgather_bytes(data, job().deadline_s, awaited)]

    return agreed(gather, compute, "trainer")


@dataclass(frozen=True)
class _JobStates:
    """What a checkpoint says of objects: states as `split_state` returns them.

    ``objects``: trainer 0's; ``trainers``: those of each trainer that are others. ``individual``:
    the tensors that each trainer has saved.
    """

    objects: Mapping[str, Any]
    trainers: tuple[Mapping[str, Any], ...]
    individual: tuple[str, ...] = ()

    def of_trainer(
        self, trainer: int, trainers: int, tensors: dict[str, SavedTensor]
    ) -> dict[str, Any]:
        """Return the result of `state_from` for a trainer that continues among ``trainers``.

        Its own if there were as many, or if there are no tensors in it; else trainer 0's.
        """
        own = self.trainers[trainer] if trainer < len(self.trainers) else self.trainers[0]
        states = {}
        for name, of_first in self.objects.items():
            found: dict[str, SavedTensor] = {}
            states[name] = state_from(own.get(name, of_first), found)
            if found and trainers != len(self.trainers):
                found.clear()
                states[name] = state_from(of_first, found)
            for tensor in found.values():
                if tensors.setdefault(tensor.name, tensor) != tensor:
                    raise ValueError(f"tensor {tensor.name!r:.80} is described twice")
        return states

    def variable(self, tensor: str, trainer: int, trainers: int) -> str:
        """Return the variable that keeps what a trainer of ``trainers`` reads of a tensor."""
        own = trainer and trainers == len(self.trainers) and tensor in self.individual
        return individually(tensor, trainer) if own else tensor


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
    if not record.trainers:
        raise ValueError("no trainers")
    for trainer in range(trainers := len(record.trainers)):
        tensors: dict[str, SavedTensor] = {}
        record.of_trainer(trainer, trainers, tensors)
        for tensor in tensors.values():
            variable = record.variable(tensor.name, trainer, trainers)
            saved = checkpoint.saved(variable)
            if tensor.name == STATES or (saved.shape, saved.dtype) != array_type(tensor):
                raise ValueError(f"{variable!r:.80} is {saved.dtype}{list(saved.shape)}")
