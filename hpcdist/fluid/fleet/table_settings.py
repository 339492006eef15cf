"""Settings of sparse tables in a DistributedStrategy: which are there, which change anything.

Rows of a table are trained here by the optimizer that minimizes the loss, and stay until the job
ends. Settings of how Paddle stores rows are kept, and without effect; what would train, keep or
save other rows is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcdist.base.checks import no_field
from hpcdist.base.errors import FleetError, FleetTypeError
from hpcdist.fluid.fleet.collective_settings import refuse

TABLE_FIELDS = ("sparse_table_configs", "fleet_desc_configs")

_BY_OPTIMIZER = "rows are updated by the optimizer that minimizes the loss"
_FOREVER = "rows are not counted by shows and clicks, nor dropped, while the job runs"
_RULE = ("learning_rate", "initial_range", "weight_bounds")
_RULES = {
    "naive": _RULE,
    "adagrad": (*_RULE, "initial_g2sum"),
    "adam": (*_RULE, "beta1_decay_rate", "beta2_decay_rate", "ada_epsilon"),
}
_COUNTS = """
    nonclk_coeff click_coeff base_threshold delta_threshold delta_keep_days show_click_decay_rate
    delete_threshold delete_after_unseen_days ssd_unseenday_threshold show_scale zero_init
    load_filter_slots save_filter_slots
"""
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
    "table_class": "tables lie in the servers' memory: MemorySparseTable",
    "accessor.accessor_class": f"{_FOREVER}: SparseAccessor",
    "accessor.embedx_threshold": _FOREVER,
    **{f"accessor.ctr_accessor_param.{name}": _FOREVER for name in _COUNTS.split()},
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
_AS_HERE = {"table_class": "MemorySparseTable", "accessor.accessor_class": "SparseAccessor"}
# fleet_desc_configs has the same by names of its own: a table's settings in one flat dict.
_DESC = """
    accessor_class learning_rate initial_g2sum initial_range weight_bounds embedx_threshold
    nonclk_coeff click_coeff base_threshold delta_threshold delta_keep_days
    delete_after_unseen_days show_click_decay_rate delete_threshold converter deconverter
    beta1_decay_rate beta2_decay_rate ada_epsilon optimizer ssd_unseenday_threshold
    load_filter_slots save_filter_slots
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
    **{f"sparse_{name}": f"{_FOREVER}, and {_BY_OPTIMIZER}" for name in _DESC.split()},
    **{
        f"{part}_sparse_{name}": _BY_OPTIMIZER
        for part in ("embed", "embedx")
        for name in _DESC_OF_PARTS.split()
    },
    "feature_learning_rate": "there are no graph tables",
    "nodeid_slot": "there are no graph tables",
}
_DESC_AS_HERE = {"sparse_table_class": "DownpourSparseTable"}


def check_tables(field: str, configs: Any) -> None:
    """Refuse settings of tables that there are not, and those that would change what is trained.

    ``configs``: for each table's name a dict of its settings, by Paddle's names for them.
    FleetError or FleetTypeError.
    """
    if not isinstance(configs, dict):
        raise FleetTypeError(f"{field}: expected a dict of tables, got {configs!r}")
    described = field == "fleet_desc_configs"
    settings, as_here = (_DESC_SETTINGS, _DESC_AS_HERE) if described else (_SETTINGS, _AS_HERE)
    for table, values in configs.items():
        if described and not isinstance(values, dict):
            continue  # Paddle reads tables only, of all that such a dict may hold
        if not isinstance(values, dict):
            raise FleetTypeError(f"{field}[{table!r}]: expected a dict, got {values!r}")
        if described and table in ("dense_table", "datanorm_table"):
            continue
        for shown, name, value in _named(field, table, values, described):
            if name not in settings:
                raise FleetError(no_field(f"{field}[{table!r}]", name, settings))
            instead = settings[name]
            if instead is not None and value != as_here.get(name):
                raise refuse(f"{field}[{table!r}][{shown!r}]", f"{instead}, got {value!r}")


def _named(
    field: str, table: str, values: Mapping[str, Any], described: bool
) -> Iterator[tuple[str, str, Any]]:
    """Yield each setting's full name, its path, and its value."""
    prefix = f"table_parameters.{table}."
    for shown, value in values.items():
        if not described and not str(shown).startswith(prefix):
            raise FleetError(f"{field}[{table!r}]: names begin with {prefix!r}, got {shown!r}")
        yield shown, shown if described else shown.removeprefix(prefix), value
