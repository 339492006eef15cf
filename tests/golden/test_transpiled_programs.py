"""What the transpiler makes of the golden programs, operator by operator, as Fluid 1.8.5 did.

Where hpcdist differs on purpose, the expected form is changed here; docs/differences.md says why.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hpcdist.transpiler import (
    DistributeTranspiler,
    DistributeTranspilerConfig,
    GeoSgdTranspiler,
    HashName,
    PSDispatcher,
)
from tests.golden.blocks import (
    CONFIGS,
    assert_same_blocks,
)
from tests.golden.loader import programs_from_golden, var_form


class LastServer(PSDispatcher):
    """Gives everything to the last server."""

    def dispatch(self, varlist: Any) -> list[str]:
        return [self.eps[-1] for _ in varlist]


DISPATCHERS = {"HashName": HashName, "LastServer": LastServer}


def is_pserver(name: str) -> bool:
    return CONFIGS[name]["setting"]["nps"] > 0


PSERVER = [name for name in CONFIGS if is_pserver(name)]
UNSERVED = [n for n in PSERVER if n.endswith("_unsupported")]
BROKEN_IN_FLUID = [n for n in PSERVER if "error" in CONFIGS[n]["trainer"]]
EQUAL = [n for n in PSERVER if n not in UNSERVED + BROKEN_IN_FLUID]


def endpoints_of(name: str) -> list[str]:
    return [f"127.0.0.1:{6174 + k}" for k in range(CONFIGS[name]["setting"]["nps"])]


def transpiled(name: str) -> DistributeTranspiler:
    """Transpile the origin of a golden configuration with its settings."""
    found = CONFIGS[name]
    setting = found["setting"]
    config = DistributeTranspilerConfig()
    for field, value in setting["config"].items():
        if field == "repair":  # Fluid's, without which its distributed tables fail
            continue
        setattr(config, field, DISPATCHERS[value] if field == "split_method" else value)
    kind = GeoSgdTranspiler if config.geo_sgd_mode else DistributeTranspiler
    transpiler = kind(config)
    main, startup = programs_from_golden(found["origin"], setting["random_seed"])
    transpiler.transpile(
        setting["trainer_id"],
        program=main,
        pservers=",".join(endpoints_of(name)),
        trainers=setting["trainers"],
        startup_program=startup,
        **setting["transpile_arguments"],
    )
    return transpiler


def expected(name: str) -> dict[str, Any]:
    """Return the golden configuration with the intended differences applied."""
    found = copy.deepcopy(CONFIGS[name])
    for difference in DIFFERENCES.get(name, ()):
        difference(found)
    return found


def assert_same_vars(program: Any, wanted: dict[str, Any]) -> None:
    got = {v.name: var_form(v) for v in program.global_block().vars.values()}
    want = {v["name"]: v for v in wanted["vars"]}
    assert sorted(got) == sorted(want)
    for name, var in want.items():
        assert got[name] == var


# -- intended differences --------------------------------------------------------------------------
def one_trainer_sends_plain_gradients(found: dict[str, Any]) -> None:
    """The server reads the gradient itself: no sum, no scale, no trainer's name."""
    for server in found["pservers"]:
        serve = server["listen_and_serv"]
        serve["X"] = [name.removesuffix(".trainer_0") for name in serve["X"]]
        for block in server["main"]["blocks"][1:]:
            assert [op["type"] for op in block["detail"][:2]] == ["sum", "scale"]
            del block["detail"][:2]
        server["main"]["vars"] = [
            {**v, "persistable": v["persistable"] and v["name"] not in serve["X"]}
            for v in server["main"]["vars"]
            if not v["name"].endswith(".trainer_0")
        ]


def clip_argument_clips_on_trainers(found: dict[str, Any]) -> None:
    """Clip operators stay on the trainer, and servers have none."""
    origin = found["origin"]["main"]["blocks"][0]["detail"]
    clip = [op for op in origin if op["attrs"]["op_role"] == 2 and op["type"] != "sgd"]
    sent = {f"elementwise_mul_{k}.tmp_0": f"elementwise_mul_{k}.tmp_0.trainer_0" for k in range(4)}
    trainer = found["trainer"]["main"]
    detail = trainer["blocks"][0]["detail"]
    first_send = next(i for i, op in enumerate(detail) if op["type"] == "send")
    sends = iter([op for op in detail if op["type"] == "send"])
    moved = []
    for op in copy.deepcopy(clip):
        op["attrs"]["op_role"] = 1
        op["attrs"]["op_role_var"] = [sent.get(n, n) for n in op["attrs"]["op_role_var"]]
        op["outputs"] = {s: [sent.get(n, n) for n in names] for s, names in op["outputs"].items()}
        moved.append(op)
        if op["type"] == "elementwise_mul":
            moved.append(next(sends))
    rest = [op for op in detail[first_send:] if op["type"] != "send"]
    trainer["blocks"][0]["detail"] = detail[:first_send] + moved + rest
    control = [v for v in trainer["vars"] if v["name"].startswith("__control_var")]
    kept = [v for v in found["origin"]["main"]["vars"] if v["name"] != "learning_rate_0"]
    trainer["vars"] = [{**v, "name": sent.get(v["name"], v["name"])} for v in kept] + control
    for server in found["pservers"]:
        for block in server["main"]["blocks"][1:]:
            block["detail"] = block["detail"][:2] + block["detail"][-1:]  # sum, scale, sgd
        mine = {n for names in sent for n in (names, f"{names}.trainer_0", f"{names}.trainer_1")}
        server["main"]["vars"] = [
            v
            for v in server["main"]["vars"]
            if v["name"] in mine
            or v["name"] == "learning_rate_0"
            or v["name"] in {p["name"] for p in server["params"]}
        ]


def argument_decides_for_servers(found: dict[str, Any]) -> None:
    """Fluid's servers wait for barriers here (mode 0), and its trainers send none."""
    for server in found["pservers"]:
        assert server["listen_and_serv"]["distributed_mode"] == 0
        server["listen_and_serv"]["distributed_mode"] = 2


def backups_are_kept(found: dict[str, Any]) -> None:
    """What trainers read last outlives the startup program, which fills it."""
    for server in found["pservers"]:
        server["main"]["vars"] = [
            {**v, "persistable": v["persistable"] or v["name"].endswith("_bak")}
            for v in server["main"]["vars"]
        ]


def rows_looked_up_vary(found: dict[str, Any]) -> None:
    """Fluid declares as many rows as ids have dimensions."""
    for server in found["pservers"]:
        for var in server["main"]["vars"]:
            if var["name"].startswith("prefetch_compress_out"):
                assert var["shape"] == [2, 8]
                var["shape"] = [-1, 8]
            if var["type"] == "RAW":
                var.update(shape=[], dtype="FP32")


DIFFERENCES = {
    "emb_distributed_repaired_sgd_sync": [rows_looked_up_vary],
    "emb_distributed_repaired_sgd_async": [rows_looked_up_vary],
    "linreg_sgd_async_arg_only": [argument_decides_for_servers],
    "dc_asgd_sgd": [backups_are_kept],
    "dc_asgd_momentum_sliced": [backups_are_kept],
    "linreg_sgd_sync_one_trainer": [one_trainer_sends_plain_gradients],
    "mlp_sgd_clip_globalnorm_grad_clip_argument": [clip_argument_clips_on_trainers],
}
DISTRIBUTED = ["emb_distributed_sync", "emb_distributed_async", "emb_distributed_adam_sync"]
# Here Fluid updates only the first block of each parameter on a server.
SEVERAL_BLOCKS_ON_A_SERVER = "bigfc2_sgd_custom_dispatcher_last"
ALL_BLOCKS_EQUAL = [n for n in EQUAL if n != SEVERAL_BLOCKS_ON_A_SERVER]


# -- the tests -------------------------------------------------------------------------------------
def test_the_golden_files_hold_configurations():
    modes = [CONFIGS[n]["setting"]["transpile_arguments"].get("sync_mode", True) for n in EQUAL]
    assert modes.count(True) >= 25
    assert modes.count(False) >= 10
    assert UNSERVED == ["mlp_adadelta_unsupported", "mlp_lamb_unsupported"]
    assert ["mlp_lamb_unsupported", "bigfc2_sgd_hashname", *DISTRIBUTED] == BROKEN_IN_FLUID


@pytest.mark.parametrize("name", ["emb_distributed_sync", "emb_distributed_async"])
def test_distributed_tables_need_no_repair(name):
    transpiler = transpiled(name)
    kinds = [op.type for op in transpiler.get_trainer_program().global_block().ops]
    assert kinds[:3] == ["split_ids", "prefetch", "merge_ids"]
    for endpoint in endpoints_of(name):
        (held,) = transpiler.get_pserver_program(endpoint).distribution.tables
        assert held.table.parameter == "table"


def test_beside_a_distributed_table_any_optimizer_updates_the_rest():
    server = transpiled("emb_distributed_adam_sync").get_pserver_program("127.0.0.1:6174")
    updates = [[op.type for op in block.ops if op.input("Param")] for block in server.blocks]
    assert updates == [[], ["adam"], ["sgd"], [], []]


@pytest.mark.parametrize("name", EQUAL)
def test_placement(name):
    got = {
        endpoint: {
            kind: [{"name": v.name, "shape": list(v.shape), "type": v.type} for v in held]
            for kind, held in at.items()
        }
        for endpoint, at in transpiled(name).param_grad_ep_mapping.items()
    }
    assert got == CONFIGS[name]["trainer"]["placement"]


@pytest.mark.parametrize("name", EQUAL)
def test_overview(name):
    got = [
        {
            "origin": r.origin.name,
            "origin_shape": list(r.origin.shape),
            "slice": r.slice.name,
            "slice_shape": list(r.slice.shape),
            "is_slice": r.is_slice,
            "block_id": r.block_id,
            "offset": r.offset,
            "vtype": r.vtype,
            "endpoint": r.endpoint,
        }
        for r in transpiled(name).vars_overview.distributed_vars
    ]
    assert got == CONFIGS[name]["trainer"]["overview"]


@pytest.mark.parametrize("name", EQUAL)
def test_trainer_main(name):
    program = transpiled(name).get_trainer_program()
    assert_same_blocks(program, expected(name)["trainer"]["main"])
    assert_same_vars(program, expected(name)["trainer"]["main"])


@pytest.mark.parametrize("name", EQUAL)
def test_trainer_startup(name):
    program = transpiled(name).get_trainer_startup_program()
    assert_same_blocks(program, CONFIGS[name]["trainer"]["startup"])
    assert_same_vars(program, CONFIGS[name]["trainer"]["startup"])


@pytest.mark.parametrize("name", ALL_BLOCKS_EQUAL)
def test_server_main(name):
    transpiler = transpiled(name)
    for server in expected(name)["pservers"]:
        program = transpiler.get_pserver_program(server["endpoint"])
        assert_same_blocks(program, server["main"])
        assert_same_vars(program, server["main"])
        (serve,) = program.global_block().ops
        assert {**serve.attrs, "X": serve.input("X")} == server["listen_and_serv"]


@pytest.mark.parametrize("name", ALL_BLOCKS_EQUAL)
def test_server_startup(name):
    transpiler = transpiled(name)
    for server in expected(name)["pservers"]:
        program = transpiler.get_startup_program(server["endpoint"])
        assert_same_blocks(program, server["startup"])


def test_geo_routes():
    name = "geo_sgd_mlp"
    assert transpiled(name).vars_info == CONFIGS[name]["trainer"]["vars_info"]


@pytest.mark.parametrize("name", UNSERVED)
def test_optimizers_that_fluid_refuses_or_forgets_are_served(name):
    transpiler, kind = transpiled(name), name.split("_")[1]
    for endpoint in endpoints_of(name):
        blocks = transpiler.get_pserver_program(endpoint).blocks[1:]
        assert [op.type for block in blocks for op in block.ops].count(kind) == len(blocks) > 0


def test_every_block_on_a_server_is_updated():
    transpiler = transpiled(SEVERAL_BLOCKS_ON_A_SERVER)
    server = CONFIGS[SEVERAL_BLOCKS_ON_A_SERVER]["pservers"][-1]
    program = transpiler.get_pserver_program(server["endpoint"])
    updated = [
        op.input("Param")[0] for block in program.blocks for op in block.ops if op.input("Param")
    ]
    assert sorted(updated) == sorted(p["name"] for p in server["params"])
    filled = {
        name
        for op in transpiler.get_startup_program(server["endpoint"]).global_block().ops
        for name in op.output_arg_names
    }
    assert filled == {*updated, "learning_rate_0"}
