"""The fields of fleet 2's DistributedStrategy, their defaults, and which values are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.base.checks import no_key
from hpcdist.base.errors import FleetError, FleetTypeError
from hpcdist.fluid.fleet.collective_settings import refuse

# The keys of a_sync_configs that are the communicator's, with its names for them.
FLAGS = {
    name: f"communicator_{name}"
    for name in (
        "max_merge_var_num",
        "send_queue_size",
        "independent_recv_thread",
        "min_send_grad_num_before_recv",
        "thread_pool_size",
        "send_wait_times",
    )
}
A_SYNC: dict[str, Any] = {
    "k_steps": 0,
    "max_merge_var_num": 1,
    "send_queue_size": 16,
    "independent_recv_thread": False,
    "min_send_grad_num_before_recv": 1,
    "thread_pool_size": 1,
    "send_wait_times": 1,
    "runtime_split_send_recv": False,  # rows are always cut and joined where they are sent
    "launch_barrier": True,  # trainers wait for servers when they connect
    "heter_worker_device_guard": "cpu",
    "lr_decay_steps": 10,
    "use_ps_gpu": 0,
}
# For collective training, with fleet 2.0's defaults; fleet 1.8's names of the same stand below.
COLLECTIVE: dict[str, Any] = {
    "sync_nccl_allreduce": True,
    "nccl_comm_num": 1,
    "use_hierarchical_allreduce": False,
    "hierarchical_allreduce_inter_nranks": 1,
    "fuse_all_reduce_ops": True,
    "fuse_grad_size_in_MB": 32,
    "fuse_grad_size_in_TFLOPS": 50,
    "localsgd": False,
    "localsgd_configs": {"k_steps": 1, "begin_step": 1},
    "adaptive_localsgd": False,
    "adaptive_localsgd_configs": {"init_k_steps": 1, "begin_step": 1},
    "dgc": False,
    "dgc_configs": {"rampup_begin_step": 0, "rampup_step": 1, "sparsity": [0.999]},
    "sharding": False,
    "sharding_configs": {"fuse_broadcast_MB": 32.0},
    "pipeline": False,
    "pipeline_configs": {"micro_batch": 1, "accumulate_steps": 1},
    "lars": False,
    "lars_configs": {
        "lars_coeff": 0.001,
        "lars_weight_decay": 0.0005,
        "epsilon": 0.0,
        "exclude_from_weight_decay": [],
    },
    "lamb": False,
    "lamb_configs": {"lamb_weight_decay": 0.01, "exclude_from_weight_decay": []},
    "build_strategy": None,
    "sync_batch_norm": False,
    "execution_strategy": None,
    "use_local_sgd": False,
    "mode": "nccl2",
    "collective_mode": None,
    "exec_strategy": None,
}
# For training with servers, beside a_sync and a_sync_configs.
SERVERS: dict[str, Any] = {
    "trainer_desc_configs": {
        "dump_fields_path": "",
        "dump_fields": [],
        "dump_param": [],
        "stat_var_names": [],
        "trainer": "",
        "device_worker": "",
        "local_sparse": [],
        "remote_sparse": [],
    },
    "fs_client_param": {"uri": "", "user": "", "passwd": "", "hadoop_bin": ""},
    # Paddle's servers replace Adam by another rule where this is True; here Adam stays Adam.
    "adam_d2sum": False,
    "sparse_table_configs": {},
    "fleet_desc_configs": {},
}
# What tunes Paddle's kernels and messages: kept, and without effect.
_TUNING = {
    "cudnn_exhaustive_search": False,
    "cudnn_batchnorm_spatial_persistent": False,
    "conv_workspace_size_limit": 512,
    "last_comm_group_size_MB": 1,
    "find_unused_parameters": False,
    "fuse_grad_size_in_num": 8,
    "split_data": True,
    "without_graph_optimization": True,
}
_FEDERATED = "there is no coordinator: parameter servers average what trainers send"
# Not built; the value is what to do instead. Most have settings in a field <name>_configs.
REFUSED = {
    "auto": "set what you want",
    "elastic": "start the job again with other ranks, from a checkpoint",
    "fp16_allreduce": "gradients are summed in their own type",
    "use_dist_fc": "every worker keeps all parameters",
    "asp": "parameters stay dense",
    "auto_search": "set what you want",
    "fuse_grad_merge": "gradient_merge adds gradients up one by one",
    "heter_ccl_mode": "all ranks compute on devices of one kind",
    "is_fl_ps_mode": _FEDERATED,
    "is_with_coordinator": _FEDERATED,
    "qat": "train in float32, or with amp",
    "semi_auto": "set what you want",
    "tensor_parallel": "pipeline puts stages of a network on ranks of their own",
}
_ROWS = "rows are kept where embedding(is_distributed=True) says, docs/tables.md says how"
# Values of settings other than the default which would change training; what to do instead.
_REFUSED_VALUES: dict[tuple[str, str], str] = {
    ("a_sync_configs", "heter_worker_device_guard"): REFUSED["heter_ccl_mode"],
    ("a_sync_configs", "lr_decay_steps"): "the learning rate's schedule is that of the program",
    ("a_sync_configs", "use_ps_gpu"): "servers keep tables in the host's memory",
    ("trainer_desc_configs", "dump_fields"): "fetch them: docs/observing.md says what is recorded",
    ("trainer_desc_configs", "dump_param"): "fetch them: docs/observing.md says what is recorded",
    ("trainer_desc_configs", "trainer"): "train_from_dataset is the only one",
    ("trainer_desc_configs", "device_worker"): "train_from_dataset is the only one",
    ("trainer_desc_configs", "local_sparse"): _ROWS,
    ("trainer_desc_configs", "remote_sparse"): _ROWS,
    ("fs_client_param", "uri"): (
        "models are saved on a file system that is mounted; "
        "paddle.distributed.fleet.utils.HDFSClient moves them"
    ),
}
AMP: dict[str, Any] = {
    "init_loss_scaling": 2**15,
    "incr_every_n_steps": 1000,
    "decr_every_n_nan_or_inf": 2,
    "incr_ratio": 2.0,
    "decr_ratio": 0.8,
    "use_dynamic_loss_scaling": True,
    "custom_white_list": [],
    "custom_black_list": [],
    "custom_black_varnames": [],
    "dtype": "float16",
}
# For training with servers and without.
_EVERYWHERE: dict[str, Any] = {
    "gradient_merge": False,
    "gradient_merge_configs": {"k_steps": 1, "avg": True},
    "amp": False,
    "amp_configs": AMP,
    "use_amp": False,
    "amp_loss_scaling": 2**15,
    "recompute": False,
    "recompute_configs": {"checkpoints": []},
    "forward_recompute": False,
    "recompute_checkpoints": [],
}
_SETTINGS_OF_REFUSED: dict[str, Any] = {
    **{f"{name}_configs": {} for name in REFUSED},
    "dist_fc_config": None,
}
DEFAULTS = {
    **COLLECTIVE,
    **SERVERS,
    **_EVERYWHERE,
    **_TUNING,
    **dict.fromkeys(REFUSED, False),
    **_SETTINGS_OF_REFUSED,
}


def checked(name: str, value: Any, current: Any) -> Any:
    """Return a value that fits a field; a dict changes the settings that it names.

    ``current`` is what the field is now. FleetError or FleetTypeError for what does not fit.
    """
    default = A_SYNC if name == "a_sync_configs" else DEFAULTS[name]
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise FleetTypeError(f"{name}: expected True or False, got {value!r}")
    elif isinstance(default, int):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise FleetTypeError(f"{name}: expected a number, 0 or more, got {value!r}")
    elif isinstance(default, dict):
        if not isinstance(value, dict):
            raise FleetTypeError(f"{name}: expected a dict, got {value!r}")
        if default:
            _check_settings(name, value, default)
        return {**current, **value}
    return value


def _check_settings(name: str, value: Mapping[str, Any], default: Mapping[str, Any]) -> None:
    for key, setting in value.items():
        if key not in default:
            raise FleetError(no_key(name, key, default))
        instead = _REFUSED_VALUES.get((name, key))
        if instead and setting and setting != default[key]:
            raise refuse(f"{name}[{key!r}]", f"{instead}, got {setting!r}")
