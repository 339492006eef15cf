"""Transpiled programs beside the golden ones, operator by operator."""

from __future__ import annotations

from typing import Any

from tests.golden.loader import golden, op_form, plain

CONFIGS = golden("programs.json")["configs"]

KEPT = {"sub_block"}


def collect_attributes(node: Any) -> None:
    if isinstance(node, dict):
        if "attrs" in node and "type" in node:
            KEPT.update(node["attrs"])
        for value in node.values():
            collect_attributes(value)
    elif isinstance(node, list):
        for value in node:
            collect_attributes(value)


collect_attributes(CONFIGS)


def blocks_form(program: Any) -> list[dict[str, Any]]:
    return [
        {
            "idx": block.idx,
            "parent": block.parent_idx,
            "detail": [op_form(op, KEPT) for op in block.ops if op.type != "listen_and_serv"],
        }
        for block in program.blocks
    ]


def golden_blocks(program: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "idx": block["idx"],
            "parent": block["parent"],
            "detail": [normal_op(op) for op in block["detail"]],
        }
        for block in program["blocks"]
    ]


def normal_op(op: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": op["type"],
        "inputs": dict(sorted(op["inputs"].items())),
        "outputs": dict(sorted(op["outputs"].items())),
        "attrs": {k: plain(v) for k, v in sorted(op["attrs"].items())},
    }


def assert_same_blocks(program: Any, wanted: dict[str, Any]) -> None:
    for got, want in zip(blocks_form(program), golden_blocks(wanted)):
        assert [op["type"] for op in got["detail"]] == [op["type"] for op in want["detail"]]
        for got_op, want_op in zip(got["detail"], want["detail"]):
            assert got_op == want_op
        assert (got["idx"], got["parent"]) == (want["idx"], want["parent"])
    assert len(program.blocks) == len(wanted["blocks"])
