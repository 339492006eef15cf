"""The exceptions of hpcdist: every message says who, what, expected, got, and what to do."""

from __future__ import annotations


class HpcdistError(Exception):
    """Base of every error raised on purpose by hpcdist."""

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:  # tracebacks show the name by which scripts import it
            cls.__module__ = "hpcdist.errors"


HpcdistError.__module__ = "hpcdist.errors"


class GraphError(HpcdistError, ValueError):
    """A Program cannot be built or changed as asked."""


class GraphTypeError(HpcdistError, TypeError):
    """An argument of a building function has the wrong type."""


class GraphAssertionError(HpcdistError, AssertionError):
    """A Program that Fluid refuses to build with AssertionError."""


class FeedError(HpcdistError, ValueError):
    """Data fed to, or fetched from, a Program does not fit it."""

    lacks = ""  # the data variable that is not fed, where that is the mistake


class PlanError(HpcdistError, ValueError):
    """A Program cannot be distributed as asked."""


class PlanTypeError(HpcdistError, TypeError):
    """A transpiler argument has the wrong type."""


class PlanAssertionError(HpcdistError, AssertionError):
    """A transpiler setting that Fluid refuses with AssertionError."""


class PlanKeyError(HpcdistError, KeyError):
    """A name that the plan does not know, such as an endpoint."""

    __str__ = Exception.__str__  # KeyError would print the message in quotes


class PlanAttributeError(HpcdistError, AttributeError):
    """A configuration has no such field, or a field lacks what it must have."""


class FleetError(HpcdistError, ValueError):
    """A role maker or a strategy cannot be as described, or fleet is called out of turn."""


class FleetTypeError(HpcdistError, TypeError):
    """An argument of fleet's has the wrong type."""


class FleetNotImplementedError(HpcdistError, NotImplementedError):
    """A base class of fleet's was used where one of its kinds is needed."""


class FileSystemError(HpcdistError, OSError):
    """A command of a file system has failed."""


class FSFileExistsError(FileSystemError):
    """A file or directory is where none may be."""


class FSFileNotExistsError(FileSystemError):
    """A file or directory is not there."""


class FSTimeOut(FileSystemError, TimeoutError):
    """A command of a file system did not end in time."""


class SettingError(HpcdistError, ValueError):
    """An environment variable or a flag has a value that cannot be, or there is no such flag."""


class SettingTypeError(HpcdistError, TypeError):
    """A flag is given a value of another type."""


class DataError(HpcdistError, ValueError):
    """A data set is missing, damaged or malformed."""


class DataNotImplementedError(HpcdistError, NotImplementedError):
    """What a data set of this kind cannot do, where Fluid raises NotImplementedError."""


class EOFException(Exception):
    """A reader that was started has given all its batches: an end, as StopIteration is, no fault.

    Fluid's scripts catch it as ``fluid.core.EOFException`` and call ``reset()``.
    """


class CommError(HpcdistError, RuntimeError):
    """A rank died, a message did not come in time, or ranks disagree."""


class DeadlineError(CommError, TimeoutError):
    """A message did not come within FLAGS_rpc_deadline; ``missing`` are ranks that it waits for."""

    missing: tuple[int, ...] = ()


class RankFailure(CommError):
    """A message cannot come or go because ``ranks`` of the job have died.

    ``what`` was waited for. ``ended`` are the places of requests that the same wait has found
    ended, in the list waited for.

    >>> str(RankFailure("all_reduce", (2,)))
    'all_reduce: rank 2 died'
    """

    def __init__(self, operation: str, ranks: tuple[int, ...], ended: tuple[int, ...] = ()) -> None:
        super().__init__(f"{operation}: rank {', '.join(map(str, ranks))} died")
        self.what = operation
        self.ranks = ranks
        self.ended = ended

    def again(self, operation: str) -> RankFailure:
        """Return the error of another operation that cannot go on for the same reason."""
        return RankFailure(operation, self.ranks)


class GroupError(HpcdistError, ValueError):
    """A group of ranks cannot be made as asked."""


class LaunchError(HpcdistError, RuntimeError):
    """A job cannot be started as asked."""


class TraceError(HpcdistError, RuntimeError):
    """A recording of a job is missing or damaged, or cannot be written."""


class MetricError(HpcdistError, ValueError):
    """A metric has a name or a step that cannot be, or its files cannot be written or read."""


class MetricTypeError(HpcdistError, TypeError):
    """What is to be logged is no number."""


class TableError(HpcdistError, ValueError):
    """A table of rows is full, or its ids or gradients are malformed."""


class CheckpointError(HpcdistError, RuntimeError):
    """Saved values are missing, damaged or do not fit, or cannot be written."""


class PublicationError(HpcdistError, RuntimeError):
    """A published version is missing, damaged or foreign, or does not follow the one before."""


class NotFiniteError(HpcdistError, ArithmeticError):
    """What is fetched holds NaN; or parameters that are to be saved hold NaN or infinity."""


class TrainersDied(CheckpointError):
    """Trainers died while all made, or read, a checkpoint together; it can be done without them."""


class MissingNameError(HpcdistError, AttributeError):
    """A name of Fluid's that hpcdist does not have, or a name that neither has."""


class MissingModuleError(HpcdistError, ModuleNotFoundError):
    """A module of Fluid's, or a name in one, that hpcdist does not have is imported."""
