"""The numbers of element types in files of Fluid's."""

from __future__ import annotations

# The numbers of element types in Fluid's files and attributes: framework.proto, VarType.Type.
CODES = {
    "bool": 0,
    "int16": 1,
    "int32": 2,
    "int64": 3,
    "float16": 4,
    "float32": 5,
    "float64": 6,
    "uint8": 20,
    "int8": 21,
}
NAMES = {code: name for name, code in CODES.items()}
