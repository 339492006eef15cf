"""Settings of sparse tables in a DistributedStrategy: which are there, which change anything.

Rows of a table are trained here by the optimizer that minimizes the loss. Settings of how Paddle
stores rows are kept, and without effect; coefficients of scores, and the score at which rows widen,
become those of the table's policy; what would train, keep or save other rows is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from hpcdist.base.checks import no_field
from hpcdist.base.errors import FleetError, FleetTypeError, TableError
from hpcdist.checkpoint.rows import Choice
from hpcdist.fluid.fleet.collective_settings import refuse
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Parameter
from hpcdist.ps.row_policy import ClickScore, RowPolicy
from hpcdist.transpiler.table_metadata import tables_looked_up

DELTA_KEEP_DAYS = 16.0  # Paddle's, where a strategy says none
CACHE_RATE = 0.00055  # Paddle's too
TABLE_FIELDS = ("sparse_table_configs", "fleet_desc_configs")

_DESCRIBED = "fleet_desc_configs"  # where Paddle gives all numbers other values, if none is said
_THRESHOLD = "embedx_threshold"  # the score at which rows widen: 0, or as many there
_DESCRIBED_THRESHOLD = 10.0
THRESHOLDS = {_DESCRIBED: (1.5, 0.25), "sparse_table_configs": (0.0, 0.0)}  # of bases and deltas

_BY_OPTIMIZER = "rows are updated by the optimizer that minimizes the loss"
_IN_MEMORY = "tables lie in the servers' memory"
_ALL_SAVED = "models hold all rows"
_SCORES = tuple(field.name for field in fields(ClickScore))  # mean the same there
_CHOICE = ("base_threshold", "delta_threshold", "delta_keep_days")  # of rows that models hold
_RULE = ("learning_rate", "initial_range", "weight_bounds")
_RULES = {
    "naive": _RULE,
    "adagrad": (*_RULE, "initial_g2sum"),
    "adam": (*_RULE, "beta1_decay_rate", "beta2_decay_rate", "ada_epsilon"),
}
_OTHER_COUNTS: dict[str, str | None] = {
    **dict.fromkeys(_CHOICE),
    "ssd_unseenday_threshold": None,  # of tables on disk, which table_class refuses
    "show_scale": "gradients are not divided by shows: False",
    "zero_init": "rows begin as their initializer says",
    **dict.fromkeys(("load_filter_slots", "save_filter_slots"), _ALL_SAVED),
}
# By their paths below table_parameters.<table>; the value says why a setting is refused.
_STORED: dict[str, str | None] = dict.fromkeys(
    (
        "table_id",
        "table_name",
        "shard_num",
        "type",
        "compress_in_save",
        "enable_sparse_table_cache",
        "sparse_table_cache_rate",
        "sparse_table_cache_file_num",
        "enable_revert",
        "shard_merge_rate",
        "accessor.fea_dim",
        "accessor.embedx_dim",
    )
)
_SETTINGS: dict[str, str | None] = {
    **_STORED,
    "table_class": f"{_IN_MEMORY}: MemorySparseTable",
    "accessor.accessor_class": "rows are pulled without shows and clicks: SparseAccessor",
    f"accessor.{_THRESHOLD}": None,
    **{f"accessor.ctr_accessor_param.{name}": None for name in _SCORES},
    **{f"accessor.ctr_accessor_param.{name}": why for name, why in _OTHER_COUNTS.items()},
    **{
        f"accessor.table_accessor_save_param.{name}": "tables are saved as they are"
        for name in ("num", "param", "converter", "deconverter")
    },
    **{
        f"accessor.{part}.{name}": _BY_OPTIMIZER
        for part in ("embed_sgd_param", "embedx_sgd_param")
        for name in ("name", *(f"{rule}.{n}" for rule, names in _RULES.items() for n in names))
    },
    **{
        f"accessor.graph_sgd_param.{name}": "there are no graph tables"
        for name in ("nodeid_slot", "feature_learning_rate")
    },
}
_AS_HERE = {
    "table_class": "MemorySparseTable",
    "accessor.accessor_class": "SparseAccessor",
    "accessor.ctr_accessor_param.show_scale": False,
}
# fleet_desc_configs has the same by names of its own: a table's settings in one flat dict.
_DESC = """
    accessor_class learning_rate initial_g2sum initial_range weight_bounds converter deconverter
    beta1_decay_rate beta2_decay_rate ada_epsilon optimizer load_filter_slots save_filter_slots
"""
_DESC_OF_PARTS = """
    optimizer learning_rate weight_bounds initial_range initial_g2sum beta1_decay_rate
    beta2_decay_rate
"""
_DESC_SETTINGS: dict[str, str | None] = {
    **dict.fromkeys(
        (
            "sparse_compress_in_save",
            "sparse_shard_num",
            "sparse_fea_dim",
            "sparse_embedx_dim",
            "sparse_enable_cache",
            "sparse_cache_rate",
            "sparse_cache_file_num",
        )
    ),
    "sparse_table_class": _SETTINGS["table_class"],
    **{f"sparse_{name}": f"{_BY_OPTIMIZER}, {_ALL_SAVED}" for name in _DESC.split()},
    **{f"sparse_{name}": None for name in (*_SCORES, *_CHOICE, _THRESHOLD)},
    "sparse_ssd_unseenday_threshold": None,
    **{
        f"{part}_sparse_{name}": _BY_OPTIMIZER
        for part in ("embed", "embedx")
        for name in _DESC_OF_PARTS.split()
    },
    "feature_learning_rate": "there are no graph tables",
    "nodeid_slot": "there are no graph tables",
}
_DESC_AS_HERE = {"sparse_table_class": "DownpourSparseTable"}
_NOT_HERE = tuple(("fleet_desc_configs", name) for name in ("dense_table", "datanorm_table"))


def check_tables(field: str, configs: Any) -> None:
    """Refuse settings of tables that there are not, and those that would change what is trained.

    ``configs``: for each table's name a dict of its settings, by Paddle's names for them.
    FleetError or FleetTypeError.
    """
    if not isinstance(configs, dict):
        raise FleetTypeError(f"{field}: expected a dict of tables, got {configs!r}")
    described = field == _DESCRIBED
    settings, as_here = (_DESC_SETTINGS, _DESC_AS_HERE) if described else (_SETTINGS, _AS_HERE)
    for table, values in configs.items():
        if described and not isinstance(values, dict):
            continue  # Paddle reads tables only, of all that such a dict may hold
        if not isinstance(values, dict):
            raise FleetTypeError(f"{field}[{table!r}]: expected a dict, got {values!r}")
        if (field, table) in _NOT_HERE:
            continue
        for shown, name, value in _named(field, table, values, described):
            if name not in settings:
                raise FleetError(no_field(f"{field}[{table!r}]", name, settings))
            instead = settings[name]
            if instead is not None and value != as_here.get(name):
                raise refuse(f"{field}[{table!r}][{shown!r}]", f"{instead}, got {value!r}")
        _counting(field, table, RowPolicy(score=ClickScore()), values)


def set_scores(main: Program, strategy: object) -> None:
    """Give the policies of a Program's tables the numbers of scores that a strategy names.

    FleetError for a table that counts neither shows nor clicks.
    """
    startup = main.startup
    assert startup is not None, "minimize sets it"
    for field in TABLE_FIELDS:
        for table, values in getattr(strategy, field, {}).items():
            if not isinstance(values, dict) or (field, table) in _NOT_HERE:
                continue
            named = bool(_coefficients(field, table, values) or _threshold(field, table, values))
            if not (named or field == _DESCRIBED):
                continue
            counted = False
            for program in (main, startup):
                var = program.global_block().vars.get(table)
                policy = var.row_policy if isinstance(var, Parameter) else None
                if isinstance(var, Parameter) and isinstance(policy, RowPolicy) and policy.score:
                    var.row_policy = _counting(field, table, policy, values)
                    counted = True
            if named and not counted:
                raise FleetError(
                    f"{field}[{table!r}]: coefficients of scores, and {_THRESHOLD}, are for tables "
                    f"that count shows and clicks: make {table!r} with "
                    "entry=ShowClickEntry(show, click), or row_policy=RowPolicy(score=ClickScore())"
                )


def choices_of(strategy: object, *, delta: bool = False) -> dict[str, Choice]:
    """Return which rows Paddle's base or delta models hold, by the tables that a strategy names.

    A ``delta`` holds only those of them that have had enough shows and clicks since they were last
    in a base or a delta.
    """
    choices = {}
    for field in TABLE_FIELDS:
        for table, values in getattr(strategy, field, {}).items():
            if isinstance(values, dict) and (field, table) not in _NOT_HERE:
                given = _counts(field, table, values)
                thresholds = THRESHOLDS[field]
                score = float(given.get("base_threshold", thresholds[0]))
                days = float(given.get("delta_keep_days", DELTA_KEEP_DAYS))
                least = float(given.get("delta_threshold", thresholds[1])) if delta else 0.0
                choices[table] = Choice(score, days, least_delta=least)
    return choices


def cache_of(origin: Program, strategy: object, number: int) -> tuple[str, Choice, float]:
    """Return a Program's table by its number, in the order of names, and what its cache holds.

    These are the rows of a base model, and which part of them. FleetError if there is no such.
    """
    tables = sorted(tables_looked_up(origin))
    if not 0 <= number < len(tables):
        raise FleetError(f"save_cache_model: table_id {number}: the tables are {tables}")
    table = tables[number]
    configs = getattr(strategy, "sparse_table_configs", {}).get(table, {})
    share = configs.get(f"table_parameters.{table}.sparse_table_cache_rate", CACHE_RATE)
    choice = choices_of(strategy).get(table, Choice(0.0, DELTA_KEEP_DAYS))
    return table, replace(choice, least_delta=None), float(share)


def _coefficients(field: str, table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the coefficients of a score among a table's settings, by `ClickScore`'s names."""
    given = _counts(field, table, values)
    return {name: value for name, value in given.items() if name in _SCORES}


def _counts(field: str, table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a table's settings that are about shows and clicks."""
    described = field == _DESCRIBED
    prefix = "sparse_" if described else "accessor.ctr_accessor_param."
    named = ((name, value) for _, name, value in _named(field, table, values, described))
    return {name.removeprefix(prefix): value for name, value in named if name.startswith(prefix)}


def _threshold(field: str, table: str, values: Mapping[str, Any]) -> Any:
    """Return the score at which rows widen, as a table's settings say; None if they do not."""
    wanted = f"sparse_{_THRESHOLD}" if field == _DESCRIBED else f"accessor.{_THRESHOLD}"
    named = _named(field, table, values, field == _DESCRIBED)
    return next((value for _, name, value in named if name == wanted), None)


def _counting(field: str, table: str, policy: RowPolicy, values: Mapping[str, Any]) -> RowPolicy:
    """Return the policy of a table that has a score, with the numbers that its settings say."""
    described = field == _DESCRIBED
    score, widen_at = policy.score or ClickScore(), policy.widen_at
    if described:  # which has all numbers
        score, widen_at = ClickScore(), _DESCRIBED_THRESHOLD
    threshold = _threshold(field, table, values)
    widen_at = widen_at if threshold is None else threshold
    try:
        score = replace(score, **_coefficients(field, table, values))
        return replace(policy, score=score, widen_at=widen_at)
    except TableError as error:
        raise FleetError(f"{field}[{table!r}]: {error}") from None


def _named(
    field: str, table: str, values: Mapping[str, Any], described: bool
) -> Iterator[tuple[str, str, Any]]:
    """Yield each setting's full name, its path, and its value."""
    prefix = f"table_parameters.{table}."
    for shown, value in values.items():
        if not described and not str(shown).startswith(prefix):
            raise FleetError(f"{field}[{table!r}]: names begin with {prefix!r}, got {shown!r}")
        yield shown, shown if described else shown.removeprefix(prefix), value
