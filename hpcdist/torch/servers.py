"""What trainers of a torch job have on servers: tables, and parameters of modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xxhash
from torch import nn

from hpcdist import runtime
from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array
from hpcdist.ps.client import PsClient
from hpcdist.ps.facts import Facts
from hpcdist.ps.messages import VALUE_TAG
from hpcdist.ps.plan import Plan
from hpcdist.ps.slicing import Slice
from hpcdist.runtime.job.job import Job
from hpcdist.runtime.pserver.declared import DeclaredOnServers, deadline_s, tell_servers

if TYPE_CHECKING:
    from hpcdist.runtime.pserver.geo_exchange import GeoExchange


class Served(DeclaredOnServers):
    """What a trainer has on servers, and how it exchanges it with them."""

    def __init__(self, job: Job, facts: Facts, parameters: Mapping[str, nn.Parameter]) -> None:
        """Plan, take the servers' values of ``parameters``, connect. Collective among trainers."""
        super().__init__(job, facts)
        self._parameters = parameters
        self._gradients = {
            name: np.zeros(tuple(parameter.shape), np.float32)
            for name, parameter in parameters.items()
        }
        values = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
        self._blocks = blocks_of(self._plan, values)
        if job.role.index == 0:
            self._give(job, self._blocks)
        self._read(job.current_client())
        self._geo: GeoExchange | None = None
        if self._plan.mode.geo:
            from hpcdist.runtime.pserver.geo_exchange import GeoStep  # of this mode only

            local = job.adopt(self._plan, GeoStep)
            self._connection, self._geo = local.connection, local.connect(values)
        else:
            self.connect({**self._blocks, **self._gradient_blocks()})

    def read(self) -> None:
        """Overwrite parameters with the servers' present values."""
        self._read(self.client)

    def _read(self, client: PsClient) -> None:
        for endpoint in self._plan.endpoints:
            client.read(
                endpoint, {p.name: self._blocks[p.name] for _, p in self._plan.blocks_on(endpoint)}
            )
        self._note_answer()

    def _note_answer(self) -> None:
        self._answered = {name: _trace(parameter) for name, parameter in self._parameters.items()}

    def _gradient_blocks(self) -> dict[str, Array]:
        return {
            name: _rows(self._gradients[route.parameter], piece)
            for route in self._plan.routes
            for name, piece in zip(self._plan.local_gradients(route), route.slices, strict=True)
        }

    def _give(self, job: Job, first_values: Mapping[str, Array]) -> None:
        """Send every server the initial values of its blocks."""
        sent = []
        for rank, endpoint in zip(job.cluster.servers, self._plan.endpoints, strict=True):
            for _, piece in self._plan.blocks_on(endpoint):
                sent.append(job.transport.isend(first_values[piece.name], rank, VALUE_TAG))
        job.transport.wait_all(
            sent, lambda: "giving servers the first values of parameters", deadline_s()
        )

    @property
    def moves_nothing(self) -> bool:
        """Whether trainers train by themselves, and servers add up what has changed."""
        return self._geo is not None

    def take(self, optimizer: int) -> None:
        """Record the gradients of an optimizer's parameters, to be sent at the end of the step.

        TableError for values, and for gradients, of which servers would make others than torch.
        """
        moved_by = self.facts.optimizers[optimizer]
        for dense in self.facts.dense:
            if dense.optimizer != optimizer:
                continue
            name, parameter = dense.name, self._parameters[dense.name]
            if self._geo is not None:  # the trainer's own optimizer has used the gradients
                if parameter.data_ptr() != self._answered[name][0]:
                    raise TableError(
                        f"parameter {name!r} has moved in memory since the first step: change "
                        "values in place, as load_state_dict does"
                    )
                continue
            if _trace(parameter) != self._answered[name]:
                raise TableError(
                    f"parameter {name!r} was changed on this rank, but the servers keep another "
                    "value: set values before the first step, or with hpcdist.torch.Saver's "
                    "restore()"
                )
            if parameter.grad is None and not moved_by.zero_is_nothing:
                raise TableError(
                    f"parameter {name!r} has no gradient: servers would take zeros and still move "
                    f"it by {moved_by}, while torch would leave it as it is; set its gradient to "
                    "zeros if that is intended, or freeze it (requires_grad_(False)) from the "
                    "beginning"
                )
            if parameter.grad is None:
                self._gradients[name].fill(0)
            elif parameter.grad.layout is not torch.strided:
                raise TableError(
                    f"parameter {name!r} has a sparse gradient, servers take dense ones: use "
                    "hpcdist.torch.Embedding, or sparse=False"
                )
            else:
                np.copyto(self._gradients[name], parameter.grad.numpy())

    def end_step(self) -> None:
        """End a step whose rows have been pushed: send gradients, take parameters."""
        if self._geo is not None:
            self._geo.end_step({})
            return
        super().end_step()
        self._note_answer()

    def set_rates(self, rates: Sequence[float]) -> None:
        """Set the learning rates by which servers update rows from now on. Trainer 0 calls this."""
        if self._geo is None:  # else they move nothing
            super().set_rates(rates)


def blocks_of(plan: Plan, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the blocks of whole parameters, by their names, where they lie."""
    return {
        piece.name: _rows(values[route.parameter], piece)
        for route in plan.routes
        for piece in route.slices
    }


def _rows(value: Array, piece: Slice) -> Array:
    flat = value.reshape(-1)
    return flat[piece.offset : piece.offset + piece.size].reshape(piece.shape)


def _trace(parameter: nn.Parameter) -> tuple[int, int]:
    """Return a parameter's address and hash, by which writes of others are noticed."""
    return parameter.data_ptr(), xxhash.xxh3_64_intdigest(parameter.detach().numpy().data)


def announce(facts: Facts, parameters: Mapping[str, nn.Parameter]) -> Served:
    """Send the servers what to keep, and connect to them. Every trainer calls this."""
    job = runtime.current()
    assert job is not None, "there are servers"
    tell_servers(job, facts)
    return Served(job, facts, parameters)
