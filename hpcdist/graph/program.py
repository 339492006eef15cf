"""Program: a list of blocks, and the guards that set the current one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakSet

from hpcdist.base.errors import GraphTypeError
from hpcdist.graph.block import Block
from hpcdist.graph.distribution import (
    NOT_DISTRIBUTED,
    FluidField,
    ProgramDistribution,
    VarsDistributed,
)
from hpcdist.graph.memory_saving import MemorySaving
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator, as_names
from hpcdist.graph.pipeline import PipelineCut
from hpcdist.graph.printing import program_text
from hpcdist.graph.pruning import Target, prune
from hpcdist.graph.variable import Parameter, Variable

T = TypeVar("T")


class Program:
    """What is to be computed: blocks of operators; block 0 is global.

    ``random_seed`` 0 means that initializers draw from the job's seed instead of their own.

    Examples:
        >>> main, startup = fluid.Program(), fluid.Program()
        >>> with fluid.program_guard(main, startup):
        ...     out = fluid.layers.fc(fluid.data("x", [None, 3]), size=2)
        >>> [parameter.shape for parameter in main.all_parameters()]
        [(3, 2), (2,)]
    """

    # What Fluid's scripts read of `distribution`.
    _is_distributed = FluidField(False)
    _is_chief = FluidField(False)
    _endpoints = FluidField[Sequence[str]](())
    _ps_endpoint = FluidField[str | None](None)
    _distributed_lookup_table = FluidField[str | None](None)
    _parameters_on_pservers = FluidField[VarsDistributed | None](None)
    _trainers_endpoints = FluidField[Sequence[str]](())
    _nccl_comm_num = FluidField(1)
    _use_hierarchical_allreduce = FluidField(False)
    _hierarchical_allreduce_inter_nranks = FluidField(0)

    _seed_of_all = 0  # the random_seed that Programs begin with
    initialized: ClassVar[WeakSet[Program]] = WeakSet()  # by a startup: all that `minimize` knows

    def __init__(self) -> None:
        self.blocks: list[Block] = [Block(self, 0)]
        self.current_block_idx = 0
        self.random_seed = Program._seed_of_all
        self.current_role = OpRole.FORWARD
        self.current_role_var: tuple[str, ...] = ()
        self.current_device = ""  # as `device_guard` says
        self.version = 0  # grows with every change: compiled forms check it
        self._startup: Program | None = None
        self.for_test = False  # cloned to evaluate
        self.main: Program | None = None  # the Program that this one, a startup, initializes
        self.mains: list[Program] = []  # all such, in the order of minimize
        self.memory_saving: MemorySaving | None = None
        self._appending_grad_times = 0  # backward passes appended; scripts of Fluid read it
        self.on_trainer: Program | None = None  # what a trainer runs in place of this Program
        self._trains = (-1, False)  # version, whether it trains
        self._kept: dict[object, tuple[int, Any]] = {}  # by ProgramCache: version, value
        self.distribution: ProgramDistribution = NOT_DISTRIBUTED
        self.pipeline: PipelineCut | None = None  # where it is cut into stages
        self._fleet_opt: dict[str, Any] = {}  # options of train_from_dataset, of fleet's scripts

    @property
    def startup(self) -> Program | None:
        """The Program that initializes this one; minimize sets it, and its ``main``."""
        return self._startup

    @startup.setter
    def startup(self, startup: Program | None) -> None:
        """Note which Program initializes this one, on both of them."""
        self._startup = startup
        if startup is not None:
            startup.main = self
            Program.initialized.add(self)
            if self not in startup.mains:
                startup.mains.append(self)

    def initialize_as(self, startup: Program) -> None:
        """Take over the main Programs of the startup Program that this one was made from."""
        self.main, self.mains = startup.main, [*startup.mains]

    def global_seed(self, seed: int = 0) -> None:
        """Give this Program, and all that are made from now on, this ``random_seed``."""
        Program._seed_of_all = self.random_seed = int(seed)

    # -- blocks ------------------------------------------------------------------------------
    def global_block(self) -> Block:
        """Return block 0.

        Examples:
            >>> out = fluid.layers.relu(fluid.data("x", [None, 3]))
            >>> [op.type for op in fluid.default_main_program().global_block().ops]
            ['relu']
        """
        return self.blocks[0]

    def block(self, index: int) -> Block:
        """Return a block by index."""
        return self.blocks[index]

    def current_block(self) -> Block:
        """Return the block that layers append to."""
        return self.blocks[self.current_block_idx]

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    def create_block(self, parent_idx: int | None = None) -> Block:
        """Add a block below ``parent_idx`` (the current one) and make it current."""
        parent = self.current_block_idx if parent_idx is None else parent_idx
        block = Block(self, len(self.blocks), parent)
        self.blocks.append(block)
        self.current_block_idx = block.idx
        self.touch()
        return block

    _create_block = create_block

    def rollback(self) -> None:
        """Go back to the parent of the current block."""
        self.current_block_idx = self.current_block().parent_idx

    _rollback = rollback

    def touch(self) -> None:
        """Record that the Program changed."""
        self.version += 1

    def _sync_with_cpp(self) -> None:
        """Do nothing: a Program has no copy in C++ that could differ."""

    # -- contents ----------------------------------------------------------------------------
    def list_vars(self) -> Iterator[Variable]:
        """Yield every variable of every block.

        Examples:
            >>> x = fluid.data("x", [None, 3])
            >>> [variable.name for variable in fluid.default_main_program().list_vars()]
            ['x']
        """
        for block in self.blocks:
            yield from block.vars.values()

    def all_parameters(self) -> list[Parameter]:
        """Parameters of the global block in order of creation.

        Examples:
            >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), size=2, name="out")
            >>> [parameter.name for parameter in fluid.default_main_program().all_parameters()]
            ['out.w_0', 'out.b_0']
        """
        return self.global_block().all_parameters()

    @property
    def trains(self) -> bool:
        """Whether block 0 has operators of an optimizer."""
        if self._trains[0] != self.version:
            updates = any(op.role & OpRole.OPTIMIZE for op in self.global_block().ops)
            self._trains = self.version, updates
        return self._trains[1]

    # -- what is being built -----------------------------------------------------------------
    @contextmanager
    def role_guard(self, role: OpRole, role_var: Sequence[Any] = ()) -> Iterator[None]:
        """Give operators appended inside the ``with`` this role and these role variables."""
        saved = self.current_role, self.current_role_var
        self.current_role, self.current_role_var = role, tuple(as_names(list(role_var)))
        try:
            yield
        finally:
            self.current_role, self.current_role_var = saved

    def _optimized_guard(self, param_and_grads: Sequence[Any]) -> Any:
        return self.role_guard(OpRole.OPTIMIZE, param_and_grads)

    def _lr_schedule_guard(self) -> Any:
        return self.role_guard(OpRole.LR_SCHED)

    # -- copies ------------------------------------------------------------------------------
    def clone(self, for_test: bool = False) -> Program:
        """Return a deep copy; for_test drops what only training needs, sending included.

        Operators with an ``is_test`` attribute get it set; of the variables only data and those of
        the operators that are left stay.

        Examples:
            >>> x = fluid.layers.dropout(fluid.data("x", [None, 3]), 0.5)
            >>> test = fluid.default_main_program().clone(for_test=True)
            >>> test.global_block().ops[0].attr("is_test")
            True
        """
        new = Program()
        new.random_seed = self.random_seed
        new.memory_saving = self.memory_saving
        new.distribution = self.distribution
        new.for_test = for_test or self.for_test
        new.pipeline = None if for_test else self.pipeline
        new._startup = None if for_test else self._startup
        new._appending_grad_times = 0 if for_test else self._appending_grad_times
        new.blocks = [Block(new, b.idx, b.parent_idx) for b in self.blocks]
        dropped = OpRole.BACKWARD | OpRole.OPTIMIZE | OpRole.RPC | OpRole.DIST | OpRole.LR_SCHED
        for old_block, block in zip(self.blocks, new.blocks):
            block.vars = {name: var.copied_to(block) for name, var in old_block.vars.items()}
            for op in old_block.ops:
                if for_test and op.role & dropped:
                    continue
                copied = op.copied_to(block)
                if for_test and "is_test" in copied.attrs:
                    copied.attrs["is_test"] = True
                block.ops.append(copied)
        if for_test:
            new._drop_unused()
        return new

    def _prune(self, targets: Target | Sequence[Target]) -> Program:
        """Return a copy with just what computes these variables, or these operators."""
        return self._prune_with_input((), targets)

    def _prune_with_input(
        self, feeded_var_names: Sequence[str], targets: Target | Sequence[Target]
    ) -> Program:
        """Return the same, of what computes them from variables that are fed."""
        copy = self.clone()
        prune(copy, feeded_var_names, targets)
        return copy

    def _inference_optimize(self, prune_read_op: bool = True) -> Program:
        """Return the Program as it is used, not trained; readers are no operators here."""
        return self.clone(for_test=True)

    def _drop_unused(self) -> None:
        """Drop the blocks that no operator runs, and the variables of none, except data."""
        inner = {
            op.attrs["sub_block"] for b in self.blocks for op in b.ops if "sub_block" in op.attrs
        }
        self.blocks = [b for b in self.blocks if b.idx == 0 or b.idx in inner]
        number = {b.idx: new for new, b in enumerate(self.blocks)}
        ops = [op for b in self.blocks for op in b.ops]
        used = {name for op in ops for name in (*op.input_arg_names, *op.output_arg_names)}
        for op in ops:
            if "sub_block" in op.attrs:
                op.attrs["sub_block"] = number[op.attrs["sub_block"]]
        for block in self.blocks:
            block.idx, block.parent_idx = number[block.idx], number.get(block.parent_idx, -1)
            block.vars = {n: v for n, v in block.vars.items() if n in used or v.is_data}

    def become(self, other: Program) -> None:
        """Take over the operators, variables and distribution of a changed copy of this Program.

        Variables that stay are the same objects as before.
        """
        for block, changed in zip(self.blocks, other.blocks, strict=True):
            common = {n: v for n, v in block.vars.items() if n in changed.vars}
            added = {n: v.copied_to(block) for n, v in changed.vars.items() if n not in common}
            block.vars = common | added
            block.ops = [op.copied_to(block) for op in changed.ops]
        self.distribution = other.distribution
        self.on_trainer = None
        self.touch()

    # -- as text -----------------------------------------------------------------------------
    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Return the Program as text; with_details shows what `str` leaves out as usual."""
        return program_text(self, with_details=with_details)

    def __repr__(self) -> str:
        ops = sum(len(block.ops) for block in self.blocks)
        return f"<Program: {len(self.blocks)} blocks, {ops} operators>"

    def __str__(self) -> str:
        return program_text(self)


def program_of(part: Variable | Operator | Block) -> Program:
    """Return the Program that a block is part of, or the block of a variable or an operator."""
    program = part.program if isinstance(part, Block) else part.block.program
    assert isinstance(program, Program)
    return program


class ProgramCache(Generic[T]):
    """Values made from Programs, each kept with its Program: both are freed together.

    A value is dropped when its Program changes, unless it is ``lasting``.
    """

    def __init__(self, *, lasting: bool = False) -> None:
        self._programs: WeakSet[Program] = WeakSet()
        self._lasting = lasting

    def get(self, program: Program) -> T | None:
        """Return the value cached for a Program as it is now; None if there is none."""
        version, value = program._kept.get(self, (None, None))
        return value if self._lasting or version == program.version else None

    def put(self, program: Program, value: T) -> T:
        """Keep a value for a Program as it is now, and return it."""
        program._kept[self] = program.version, value
        self._programs.add(program)
        return value

    def of(self, program: Program, make: Callable[[], T]) -> T:
        """Return the value cached for a Program as it is now; `make` it if there is none."""
        value = self.get(program)
        return self.put(program, make()) if value is None else value

    def __iter__(self) -> Iterator[T]:
        """Yield the values of all Programs that live."""
        return (program._kept[self][1] for program in list(self._programs))

    def clear(self) -> None:
        """Drop all values."""
        for program in list(self._programs):
            del program._kept[self]
        self._programs.clear()


_main = Program()
_startup = Program()


def default_main_program() -> Program:
    """Return the Program that layers append to.

    Examples:
        >>> out = fluid.layers.relu(fluid.data("x", [None, 3]))
        >>> len(fluid.default_main_program().global_block().ops)
        1
    """
    return _main


def default_startup_program() -> Program:
    """Return the Program that initializers append to.

    Examples:
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        >>> len(fluid.default_startup_program().global_block().ops)
        2
    """
    return _startup


def switch_main_program(program: Program) -> Program:
    """Install another default main program and return the one replaced."""
    global _main
    old, _main = _main, program
    return old


def switch_startup_program(program: Program) -> Program:
    """Install another default startup program and return the one replaced."""
    global _startup
    old, _startup = _startup, program
    return old


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Build into these programs inside the ``with``.

    Examples:
        >>> main, startup = fluid.Program(), fluid.Program()
        >>> with fluid.program_guard(main, startup):
        ...     x = fluid.data("x", [None, 3])
        >>> sorted(main.global_block().vars)
        ['x']
    """
    for program in (main_program, startup_program):
        if program is not None and not isinstance(program, Program):
            raise GraphTypeError(f"program_guard: expected a Program, got {type(program).__name__}")
    old_main = switch_main_program(main_program)
    old_startup = None if startup_program is None else switch_startup_program(startup_program)
    try:
        yield
    finally:
        switch_main_program(old_main)
        if old_startup is not None:
            switch_startup_program(old_startup)
