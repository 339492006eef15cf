"""Programs out of the golden files, and back into their form."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program

KEPT = Path(__file__).parent / "data"
DTYPES = {
    "FP32": "float32",
    "FP64": "float64",
    "INT64": "int64",
    "INT32": "int32",
    "BOOL": "bool",
}


def golden(name: str) -> Any:
    """Return a golden file: of the directory HPCDIST_GOLDEN if that is set, else the one kept here.

    Both may be compressed, as NAME.gz. FileNotFoundError if HPCDIST_GOLDEN has no such file.
    """
    directory = Path(os.environ.get("HPCDIST_GOLDEN") or KEPT)
    plain = directory / name
    if plain.is_file():
        return json.loads(plain.read_text())
    return json.loads(gzip.decompress((directory / f"{name}.gz").read_bytes()))


def programs_from_golden(origin: dict[str, Any], random_seed: int = 0) -> tuple[Program, Program]:
    """Build the main and the startup Program of a configuration."""
    main, startup = dict(origin["main"]), dict(origin["startup"])
    filled = {n for op in startup["blocks"][0]["detail"] for n in op["outputs"]["Out"]}
    startup["vars"] = [var for var in main["vars"] if var["name"] in filled]
    return program_from_golden(main, random_seed), program_from_golden(startup, random_seed)


def program_from_golden(main: dict[str, Any], random_seed: int = 0) -> Program:
    """Build a Program from its golden form; what optimizers move becomes a Parameter."""
    program = Program()
    program.random_seed = random_seed
    for described in main["blocks"][1:]:
        program.create_block(described["parent"])
    program.current_block_idx = 0
    block = program.global_block()
    moved = {
        op["attrs"]["op_role_var"][0]
        for described in main["blocks"]
        for op in described["detail"]
        if op["attrs"].get("op_role_var")
    }
    for var in main["vars"]:
        facts = {"shape": var.get("shape", ()), "dtype": DTYPES.get(var.get("dtype"), "float32")}
        if var["name"] in moved and var["persistable"]:
            block.create_parameter(var["name"], **facts)
        else:
            kind = var["type"]
            block.create_var(var["name"], type=kind, persistable=var["persistable"], **facts)
    for described, target in zip(main["blocks"], program.blocks):
        for op in described["detail"]:
            attrs = dict(op["attrs"])
            if isinstance(attrs.get("sub_block"), str):
                attrs["sub_block"] = int(attrs["sub_block"].removeprefix("block "))
            target.add_op(Operator(target, op["type"], op["inputs"], op["outputs"], attrs))
    return program


def op_form(op: Operator, keep: set[str]) -> dict[str, Any]:
    """Return an operator in golden form, with the attributes that the golden files keep."""
    return {
        "type": op.type,
        "inputs": {slot: names for slot, names in sorted(op.inputs.items()) if names},
        "outputs": {slot: names for slot, names in sorted(op.outputs.items()) if names},
        "attrs": {name: plain(op.attrs[name]) for name in sorted(op.attrs) if name in keep},
    }


def plain(value: Any) -> Any:
    """Return an attribute as JSON has it; floats to the eight digits that are kept."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def var_form(var: Any) -> dict[str, Any]:
    """Return a variable in golden form."""
    names = {dtype: golden_name for golden_name, dtype in DTYPES.items()}
    return {
        "name": var.name,
        "type": var.type,
        "persistable": var.persistable,
        "shape": list(var.shape),
        "dtype": names[var.dtype],
    }
