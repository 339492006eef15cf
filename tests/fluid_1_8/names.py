"""This made hpcdist/compat/fluid_names.txt: run by PaddlePaddle Fluid 1.8.5 on Python 3.7.

    python names.py > fluid_names.txt

For each public module what scripts find in it: what it exports, what it defines, its submodules.
"""

import importlib
import sys
import textwrap
import types

MODULES = """
fluid fluid.average fluid.backward fluid.clip fluid.communicator fluid.compiler fluid.contrib
fluid.contrib.decoder fluid.contrib.layers fluid.contrib.layers.rnn_impl
fluid.contrib.layers.nn fluid.contrib.layers.metric_op
fluid.contrib.mixed_precision fluid.contrib.reader fluid.contrib.slim
fluid.contrib.utils fluid.contrib.extend_optimizer fluid.contrib.memory_usage_calc
fluid.contrib.model_stat fluid.contrib.op_frequence fluid.core fluid.data_feed_desc
fluid.data_feeder fluid.dataset fluid.debugger fluid.default_scope_funcs fluid.device_worker
fluid.dygraph fluid.evaluator fluid.executor fluid.framework fluid.graphviz fluid.incubate
fluid.incubate.data_generator fluid.incubate.fleet fluid.incubate.fleet.base
fluid.incubate.fleet.base.fleet_base fluid.incubate.fleet.base.role_maker
fluid.incubate.fleet.collective fluid.incubate.fleet.parameter_server
fluid.incubate.fleet.parameter_server.distribute_transpiler
fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy
fluid.incubate.fleet.parameter_server.pslib fluid.incubate.fleet.utils fluid.initializer
fluid.input fluid.install_check fluid.io fluid.layer_helper fluid.layers fluid.layers.collective
fluid.layers.control_flow fluid.layers.detection fluid.layers.device fluid.layers.distributions
fluid.layers.io fluid.layers.learning_rate_scheduler fluid.layers.loss fluid.layers.metric_op
fluid.layers.nn fluid.layers.ops fluid.layers.rnn fluid.layers.sequence_lod fluid.layers.tensor
fluid.layers.utils fluid.lod_tensor fluid.log_helper fluid.metrics fluid.net_drawer fluid.nets
fluid.optimizer fluid.parallel_executor fluid.param_attr fluid.profiler fluid.reader
fluid.regularizer fluid.trainer_desc fluid.transpiler fluid.transpiler.distribute_transpiler
fluid.transpiler.ps_dispatcher fluid.unique_name compat dataset dataset.common dataset.image
distributed reader version
"""


def public(module):
    exported = set(getattr(module, "__all__", None) or ())
    for name, value in vars(module).items():
        if name.startswith("_") or name == "print_function":
            continue
        if isinstance(value, types.ModuleType):
            ours = value.__name__.startswith(module.__name__ + ".")
        else:
            home = str(getattr(value, "__module__", None) or "")
            package = hasattr(module, "__path__") and home.startswith(module.__name__ + ".")
            ours = home == module.__name__ or package or home.endswith("core_avx")
        if ours:
            exported.add(name)
    return exported


def main():
    top = importlib.import_module("paddle")
    above = public(importlib.import_module("paddle.fluid.layers"))
    print("# What the modules of PaddlePaddle Fluid 1.8.5 hold; made by tests/fluid_1_8/names.py.")
    for name in ["", *MODULES.split()]:
        module = importlib.import_module("paddle." + name) if name else top
        names = public(module)
        if name.startswith("fluid.layers."):
            names -= above  # they are listed once
        print("\n[" + ("paddle." + name).rstrip(".") + "]")
        if names:
            print(textwrap.fill(" ".join(sorted(names)), 100, break_on_hyphens=False))


if __name__ == "__main__":
    sys.exit(main())
