"""A server's side: listen_and_serv runs optimize blocks on what the trainers send."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.checkpoint.serving import ServerStore
from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import GraphError
from hpcdist.executor.compile import Compiler, Step
from hpcdist.executor.control import Binding
from hpcdist.executor.pool import Pool
from hpcdist.executor.position import here
from hpcdist.graph.block import Block
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import lookup, own_attrs
from hpcdist.ops.optimize import UPDATES
from hpcdist.ops.optimize import bind_update as fused_pass
from hpcdist.ops.optimize_sparse import bind_sparse_update
from hpcdist.ops.selected_rows import SelectedRows
from hpcdist.ps.async_shards import AsyncShards
from hpcdist.ps.messages import Hello
from hpcdist.ps.packets import VarSpec
from hpcdist.ps.server import PsServer
from hpcdist.ps.shards import Shards, SyncShards
from hpcdist.ps.table import SparseTable
from hpcdist.runtime.async_server import OnPacket, bind_counters, bind_step_number, followed_by
from hpcdist.runtime.exchange import STALENESS, STEP, packets_of, sorted_tables
from hpcdist.runtime.survival import Survival, silence_s
from hpcdist.runtime.tables import held_table, spec_of
from hpcdist.transpiler.config import DistributedMode
from hpcdist.transpiler.distributed_table import ServerTable
from hpcdist.transpiler.mode import Mode

Update = Callable[[tuple[int, ...]], None]  # contributors -> update one block
TRAINER_ID = "@TRAINER_ID@"


@dataclass(frozen=True)
class OptimizeBlock:
    """One optimize block: trainers' gradients are merged into ``gradient``, then ``ops`` run."""

    block: Block
    gradient: str
    parameter: str
    ops: tuple[Operator, ...]  # without the sum and scale that merge


def read_optimize_block(program: Program, index: int, gradient: str) -> OptimizeBlock:
    """Take the merge off an optimize block; what is left is clip, regularization, update."""
    block = program.block(index)
    ops = list(block.ops)
    if len(ops) == 1 and ops[0].type == "sum" and gradient in ops[0].input("X"):  # GEO
        return OptimizeBlock(block, gradient, ops[0].output("Out")[0], tuple(ops))
    if ops and ops[0].type == "sum" and ops[0].output("Out") == [gradient]:
        merge = 2 if len(ops) > 1 and ops[1].type == "scale" else 1
        ops = ops[merge:]
    for op in ops:
        if op.input("Param"):
            return OptimizeBlock(block, gradient, op.input("Param")[0], tuple(ops))
    raise GraphError(f"optimize block {index}: no operator updates a parameter")


class Server:
    """One parameter server: its Program's blocks, bound to the rows that trainers' packets fill."""

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        index: int,
        deadline_s: float,
        survival: Survival,
        servers: Transport,
    ) -> None:
        """``servers`` is the transport of all servers."""
        self._transport = transport
        self._cluster = cluster
        self._index = index
        self._deadline_s = deadline_s
        self._survival = survival
        self._servers = servers
        self.served = False
        self.tables: Sequence[SparseTable] = ()  # of the Program that is served, or was

    def bind(self, op: Operator, binding: Binding) -> Step:
        """Return what listen_and_serv does: serve until every trainer has closed."""
        endpoint = op.attrs["endpoint"]
        expected = self._cluster.endpoints[self._index]
        if endpoint != expected:
            raise GraphError(
                f"server {self._index} is {expected!r}, but its program is for {endpoint!r}: "
                f"call get_pserver_program({expected!r}) (PADDLE_CURRENT_ENDPOINT)"
            )
        if op.attrs["Fanin"] != len(self._cluster.trainers):
            raise GraphError(
                f"the program of {endpoint!r} is for {op.attrs['Fanin']} trainers, "
                f"but the job has {len(self._cluster.trainers)}: transpile(trainers=...) must agree"
            )
        if binding.backend.xp is not np:
            raise GraphError(
                f"server {self._index} would serve from a GPU: parameter servers work on the CPU, "
                "use Executor(CPUPlace()) for the programs of a server"
            )
        return lambda: self._serve(op, binding)

    def _serve(self, op: Operator, binding: Binding) -> None:
        program = binding.program
        mode = program._server_plan.mode if program._server_plan is not None else Mode()
        is_async = mode.distributed_mode != DistributedMode.SYNC
        self._survival.synchronous = not is_async
        blocks, tables = read_blocks(op, program)
        keys = {b.gradient: b.parameter for b in blocks}
        gradients, parameters = packets_of(keys, _specs(blocks, binding), numbered=is_async)
        sparse = sorted_tables(_specs(tables, binding))
        of_rows = [held.table for held in server_tables(program)]
        self.tables = [held_table(binding, table.parameter) for table in of_rows]
        trainers = len(self._cluster.trainers)
        packets = len(gradients) + len(sparse) + bool(of_rows)
        shards: Shards = SyncShards(trainers, packets)
        arrays = _readable(program, binding)
        on_read = None
        if is_async:
            shards = AsyncShards(trainers, packets, mode.max_staleness)
            on_read = followed_by(shards.begins, _back_up(blocks, binding))
            arrays[STALENESS] = np.zeros(2, np.int64)
        schedule = _compile_schedule(program, op.attrs["lr_decay_block_id"], binding)

        def after_load() -> None:
            if is_async:  # otherwise the next step begins with its schedule
                for call in schedule:
                    call()

        store = ServerStore(
            program, binding.scope, len(self._cluster.servers), after_load, self._servers
        )
        server = PsServer(
            self._transport,
            self._cluster,
            self._index,
            expected=Hello(
                trainers,
                not is_async,
                program._fingerprint or "",
                gradients,
                parameters,
                sparse,
                tuple(map(spec_of, of_rows)),
            ),
            arrays=arrays,
            deadline_s=self._deadline_s,
            shards=shards,
            own_answers=is_async,
            on_read=on_read,
            tracked_rows=mode.geo,
            on_death=self._survival.bury,
            on_silence=self._survival.tell_silence if self._index == 0 else None,
            silence_s=silence_s(os.environ),
            tables=self.tables,
            on_checkpoint=store.answer,
        )
        by_gradient = {b.gradient: b for b in (*blocks, *tables)}
        of_variable = {
            name: bind_update(block, server.gradients[name], binding)
            for name, block in by_gradient.items()
            if name in server.gradients
        }
        if isinstance(shards, AsyncShards):
            of_variable[STEP.name] = bind_step_number(server, shards, arrays[STALENESS])
        updates = [[of_variable[v.name] for v in packet.variables] for packet in gradients]
        for spec in sparse:
            updates.append([bind_sparse(by_gradient[spec.name], server.rows[spec.name], binding)])
        rates = [_array(binding, table.learning_rate).reshape(-1) for table in of_rows]
        if of_rows:
            updates.append([lambda who: server.tables.apply(who, [float(r[0]) for r in rates])])

        def on_step_begin(step: int) -> None:
            here.step = step + 1
            for call in schedule:
                call()

        def on_packet(index: int, contributors: tuple[int, ...]) -> None:
            for update in updates[index]:
                update(contributors)

        apply: OnPacket = on_packet
        if is_async:
            steps = server.gradients[STEP.name]
            counted = bind_counters(program, schedule, packets, steps, binding)
            apply = followed_by(on_packet, counted)
        self.served = True
        here.doing = f"listen_and_serv as {op.attrs['endpoint']}"
        server.serve(on_step_begin, apply)
        self._survival.applied = server.steps_applied
        store.close()
        here.doing = ""


def read_blocks(op: Operator, program: Program) -> tuple[list[OptimizeBlock], list[OptimizeBlock]]:
    """Return the optimize blocks that listen_and_serv names: of dense, of sparse gradients."""
    sparse = {pair.partition(":")[0] for pair in op.attrs["sparse_grad_to_param"]}
    of_rows = {held.gradient for held in server_tables(program)}
    blocks: list[OptimizeBlock] = []
    tables: list[OptimizeBlock] = []
    for pair in op.attrs["grad_to_block_id"]:
        gradient, _, block_id = pair.rpartition(":")
        if gradient in of_rows:
            continue
        block = read_optimize_block(program, int(block_id), gradient)
        (tables if gradient in sparse else blocks).append(block)
    return blocks, tables


def server_tables(program: Program) -> Sequence[ServerTable]:
    """Return the distributed tables that a server's Program holds a part of."""
    return () if program._server_plan is None else program._server_plan.tables


def _specs(blocks: Sequence[OptimizeBlock], binding: Binding) -> list[VarSpec]:
    """Return the gradients of blocks, shaped like their parameters here."""
    arrays = [_array(binding, b.parameter) for b in blocks]
    return [VarSpec(b.gradient, a.shape, a.dtype.name) for b, a in zip(blocks, arrays)]


def bind_update(block: OptimizeBlock, rows: Any, binding: Binding) -> Update:
    """Return what merges the contributors' rows of one gradient and updates its parameter.

    ``rows`` [trainers, *shape] is where their packets arrive. The merge is their sum in trainer
    order times 1/contributors. Where an optimizer has a fused kernel, merge and update are one
    pass over memory; both ways give the same bits.
    """
    backend = binding.backend
    if len(block.ops) == 1 and block.ops[0].type in UPDATES:
        return _fused(block.ops[0], rows, binding)
    merged = backend.xp.empty(rows.shape[1:], rows.dtype)
    sender = np.zeros(1, np.int64)  # DC-ASGD compensates for what this trainer had read
    compiler = Compiler(_rest(block), binding.scope, backend, Pool(backend))
    steps = compiler.compile({}, [], {block.gradient: merged, TRAINER_ID: sender}).steps
    backups = _backups(block, binding)
    param = _array(binding, block.parameter)

    def generic(contributors: tuple[int, ...]) -> None:
        sender[0] = contributors[0]
        merge_rows(rows, contributors, merged)
        for call in steps:
            call()
        if backups:
            backups[contributors[0]][...] = param

    return generic


def _fused(op: Operator, rows: Any, binding: Binding) -> Update:
    """Return merge and update as one pass, bound anew for every set of contributors."""
    param, rate, state = _optimizer_arrays(op, binding)

    @functools.cache
    def bound(contributors: tuple[int, ...]) -> Step:
        attrs = own_attrs(lookup(op.type), op.attrs)
        scale = 1.0 / len(contributors)
        xp = binding.backend.xp
        return fused_pass(xp, op.type, attrs, param, rate, state, rows, contributors, scale)

    bound(tuple(range(len(rows))))  # compiled before the first step, not in it
    return lambda contributors: bound(contributors)()


def bind_sparse(block: OptimizeBlock, sent: Sequence[Any], binding: Binding) -> Update:
    """Return what merges the contributors' sparse gradients of a table and updates its rows.

    ``sent[k]`` is the (rows, values) of trainer k. The merge lists all rows in trainer order, their
    values times 1/contributors; if there are none, nothing changes, whatever the optimizer.
    """
    height = len(_array(binding, block.parameter))
    apply = _sparse_apply(block, binding)

    def update(contributors: tuple[int, ...]) -> None:
        rows = np.concatenate([sent[k][0] for k in contributors])
        values = np.concatenate([sent[k][1] for k in contributors])
        if not len(rows):
            return
        if len(contributors) > 1:
            values *= values.dtype.type(1.0 / len(contributors))
        apply(SelectedRows(rows, values, height))

    return update


def _sparse_apply(block: OptimizeBlock, binding: Binding) -> Callable[[SelectedRows], None]:
    """Return what runs the operators behind the merge on a sparse gradient.

    A lone optimizer is bound once. Clip or regularization before it depends on the number of rows,
    so that block is compiled for every gradient.
    """
    backend = binding.backend
    if len(block.ops) == 1 and block.ops[0].type in UPDATES:
        op, (param, rate, state) = block.ops[0], _optimizer_arrays(block.ops[0], binding)
        attrs = own_attrs(lookup(op.type), op.attrs)
        return bind_sparse_update(backend.xp, op.type, attrs, param, rate, state)

    def apply(merged: SelectedRows) -> None:
        compiler = Compiler(_rest(block), binding.scope, backend, Pool(backend))
        for call in compiler.compile({}, [], {block.gradient: merged}).steps:
            call()

    return apply


def _optimizer_arrays(op: Operator, binding: Binding) -> tuple[Any, Any, list[Any]]:
    """Return parameter, learning rate and state of an optimizer operator."""
    names = [op.input(slot)[0] for slot in UPDATES[op.type].state if op.input(slot)]
    state = [_array(binding, name) for name in names]
    rate = _array(binding, op.input("LearningRate")[0])
    return _array(binding, op.input("Param")[0]), rate, state


def merge_rows(rows: Any, contributors: Sequence[int], out: Any) -> None:
    """Write the mean of some rows into ``out``: summed in ascending order, then scaled."""
    out[...] = rows[contributors[0]]
    for trainer in contributors[1:]:
        out += rows[trainer]
    if len(contributors) > 1:
        out *= out.dtype.type(1.0 / len(contributors))


def _back_up(blocks: Sequence[OptimizeBlock], binding: Binding) -> Callable[[int], None]:
    """Return what notes, with DC-ASGD, that a trainer reads all parameters as they are now."""
    held = [(_array(binding, b.parameter), _backups(b, binding)) for b in blocks]

    def back_up(trainer: int) -> None:
        for param, backups in held:
            if backups:
                backups[trainer][...] = param

    return back_up


def _backups(block: OptimizeBlock, binding: Binding) -> list[Any]:
    """Return, with DC-ASGD, the parameter as each trainer last read it; else nothing."""
    plan = binding.program._server_plan
    names = [b.backups for b in plan.blocks if b.name == block.parameter] if plan else []
    return [_array(binding, name) for name in names[0]] if names else []


def _rest(block: OptimizeBlock) -> Block:
    """Return the block without its merge, for the compiler."""
    rest = Block(block.block.program, block.block.idx, block.block.parent_idx)
    rest.vars = block.block.vars
    rest.ops = list(block.ops)
    return rest


def _compile_schedule(program: Program, index: int, binding: Binding) -> list[Step]:
    if index < 0:
        return []
    compiler = Compiler(program.block(index), binding.scope, binding.backend, Pool(binding.backend))
    return compiler.compile({}, []).steps


def _array(binding: Binding, name: str) -> Any:
    found = binding.scope.find_var(name)
    if found is None or found.value is None:
        raise GraphError(
            f"variable {name!r} is not initialized on this server: run the startup program that "
            "get_startup_program() returns first"
        )
    return found.value


def _readable(program: Program, binding: Binding) -> dict[str, Any]:
    """Return every initialized persistable variable of a server: what trainers may read."""
    arrays = {}
    for var in program.list_vars():
        found = binding.scope.find_var(var.name)
        if var.persistable and found is not None and found.value is not None:
            arrays[var.name] = found.value
    return arrays
