"""Argument checks of Fluid's module ``data_feeder``, for custom layers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hpcdist.base.errors import GraphTypeError
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.variable import Variable

__all__ = ["check_dtype", "check_type", "check_variable_and_dtype", "convert_dtype"]


def convert_dtype(dtype: Any) -> str:
    """Return an element type, in any spelling, as its name in numpy; GraphError otherwise."""
    return canonical(dtype)


def check_variable_and_dtype(
    input: Any,
    input_name: str,
    expected_dtype: Collection[str],
    op_name: str,
    extra_message: str = "",
) -> None:
    """Refuse what is no Variable of one of these element types."""
    check_type(input, input_name, Variable, op_name, extra_message)
    check_dtype(input.dtype, input_name, expected_dtype, op_name, extra_message)


def check_type(
    input: Any,
    input_name: str,
    expected_type: type | tuple[type, ...],
    op_name: str,
    extra_message: str = "",
) -> None:
    """Refuse what is not of this type, or of one of these."""
    if not isinstance(input, expected_type):
        raise GraphTypeError(
            f"The type of {input_name!r} in {op_name} must be {expected_type}, but received "
            f"{type(input)}. {extra_message}".rstrip()
        )


def check_dtype(
    input_dtype: Any,
    input_name: str,
    expected_dtype: Collection[str],
    op_name: str,
    extra_message: str = "",
) -> None:
    """Refuse other element types than these."""
    if convert_dtype(input_dtype) not in expected_dtype:
        raise GraphTypeError(
            f"The data type of {input_name!r} in {op_name} must be {expected_dtype}, but received "
            f"{convert_dtype(input_dtype)}. {extra_message}".rstrip()
        )
