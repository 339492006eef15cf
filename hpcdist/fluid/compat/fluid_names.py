"""The names of Fluid 1.8.5, and what to use instead of those that hpcdist does not have.

``fluid_names.txt`` lists every name of each of Fluid's modules, whether hpcdist has it or not, and
for names that a module has only imported, from where: such a name is found where its home is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

ROOT = "paddle"
FLUID = "paddle.fluid"

# What to use instead of names, by expressions that their beginning matches. The first one counts.
_INSTEAD: dict[str, tuple[str, ...]] = {
    "its files are not fetched here: write a reader, docs/data.md says how; dir(paddle.dataset) "
    "lists the data sets that are there": (r"dataset",),
    "only operators run at once, in fluid.dygraph.guard; what has parameters is a Program: build "
    "one with fluid.layers and run it with fluid.Executor": (
        r"fluid\.(dygraph|enable_|disable_|load_dygraph|save_dygraph|VarBase|monkey_patch)",
        r"fluid\.core\.(VarBase|Tracer|Layer|BackwardStrategy|dygraph|\w*imperative)",
        r"fluid\.(Conv[23]D|Linear|Embedding|BatchNorm|Pool2D|Layer$|\w*Norm$|\w+Loss|Dropout)",
        r"fluid\.(GRUUnit|NCE|PRelu|TreeConv|BilinearTensorProduct|framework\.ParamBase)",
        r"(complex|hapi|incubate|device|distribution|sysconfig|common_ops_import|check_import)$",
        r"fluid\.unique_name\.[dD]ygraph",
    ),
    "compressing models is not part of hpcdist: save the model with "
    'fluid.io.save_persistables(..., format="fluid") and compress it there': (
        r"fluid\.(contrib\.)?(slim|quantize|QuantizeTranspiler|Compressor)",
    ),
    "no operator computes with complex numbers: keep both parts as real ones": (r".*Complex",),
    "tables of rows are embedding(is_sparse=True, is_distributed=True), on servers by "
    "DistributeTranspiler or fleet": (
        r".*(pslib|Downpour|BoxPS|core\.Fleet|core\.Gloo|distribute_lookup_table)",
        r".*(convert_dist_to_sparse|load_persistables_for_increment|lookup_table_utils)",
    ),
    "hpcdist reads and writes files of a shared file system: copy them there before the job": (
        r".*(HDFS|hdfs|multi_download|multi_upload|fs_wrapper)",
    ),
    "run a saved model by fluid.io.load_inference_model and fluid.Executor": (
        r".*(Analysis|Predictor|predictor|Native|PaddleTensor|PaddleBuf|PaddleDType|PaddlePlace)",
        r".*(ZeroCopy|Mkldnn|load_persistables_for_inference|paddle_tensor|paddle_dtype)",
    ),
    "hpcdist compiles a Program by itself, docs/architecture.md says how; print(program) shows its "
    "operators": (
        r".*\bIr",
        r"fluid\.core\.(Graph|Node|\w*Pass|get_pass|has_circle|topology_sort|graph_|build_adj)",
    ),
    "the launcher knows who is who: PaddleCloudRoleMaker, or UserDefinedRoleMaker": (
        r".*(role_maker|MockBarrier)",
    ),
    "an operator is one `define` in Python (docs/architecture.md, Adding an operator)": (
        r".*(load_op_library)",
    ),
    "start the process under nsys, which shows its kernels": (r".*cuda_profiler",),
    "the launcher and the executor choose memory: feed numpy arrays": (
        r".*[Cc][Uu][Dd][Aa]_?[Pp]inned",
    ),
    "docs/data.md lists what reads files: fluid.io.DataLoader, fluid.DatasetFactory, readers": (
        r".*([tT]rainer|Device_?[Ww]orker|device_worker|Hogwild|Section|(?i:data_?feed_?desc))",
        r".*(Dataset|dataset\.|DataLoader|data_loader|PyReader|py_reader|read_file|double_buffer)",
        r".*(BlockingQueue|blocking_queue|FeedReader|GeneratorLoader|multiprocess_reader)",
        r".*(core\.Reader|default_collate|dataloader|data_generator)",
        r"fluid\.data_feeder\.",
    ),
    "what is sent and received is decided by DistributeTranspiler; fluid.io saves and loads": (
        r"fluid\.layers\.io\.",
    ),
    "fluid.metrics has metrics that are kept outside the Program": (r"fluid\.(evaluator|metrics)",),
    "print(program) shows its operators and variables": (r"fluid\.(net_drawer|graphviz|debugger)",),
    "fluid.global_scope() and fluid.scope_guard hold variables": (r"fluid\.default_scope_funcs",),
    "the graph is fluid.Program, its blocks, operators and variables (fluid.framework)": (
        r"fluid\.core\.(Op|Block|Program|VarDesc|prune|get_grad|has_grad|has_infer|infer_no|has_non)",
        r"fluid\.(proto|backward|framework)",
    ),
    "custom layers are made with fluid.layer_helper.LayerHelper": (r"fluid\.layer_helper_base",),
    "values are summed among ranks by what training does, docs/collective.md says how": (
        r"fluid\.layers\.collective",
    ),
    "it is a part of Fluid's compiled core; fluid.* has what scripts need": (
        r"fluid\.core(_avx)?\b",
    ),
    "fleet is hpcdist.fleet, docs/fleet.md lists what it has": (
        r"fluid\.(incubate\.)?(fleet|communicator)",
    ),
    "docs/loops.md lists what loops and branches are written with": (
        r"fluid\.layers\.\w*(array|While|while|cond|case|Switch|IfElse|RNN|lod_rank)",
    ),
    "dir(fluid.optimizer) lists the optimizers that are there": (r"fluid\.optimizer\.",),
    "NumpyArrayInitializer takes any values": (r"fluid\.initializer\.",),
    "Fluid computes it on GPUs only: compose it of gather and matmul": (r".*rank_attention",),
    "hash the n-grams in the reader, and look them up by fluid.layers.embedding": (
        r".*search_pyramid_hash",
    ),
    "it fails in Fluid, too: fluid.io.load_vars reads a variable": (r"fluid\.layers\.load",),
    "compose it of the layers that are there, dir(fluid.layers) lists them": (
        r"fluid\.(layers|nets|contrib)\.",
    ),
}

# Names that Fluid had before.
_EARLIER = {
    "fluid.AsyncExecutor": "exe.train_from_dataset trains from files, docs/data.md says how",
}


class Home(NamedTuple):
    """Where a name comes from that a module of Fluid's has imported."""

    module: str
    name: str  # empty: the module itself


@functools.cache
def table() -> dict[str, dict[str, Home | None]]:
    """Return the names of each Fluid module: its `Home`, or None for the module's own."""
    from importlib import resources

    text = (resources.files(__package__) / "fluid_names.txt").read_text("utf-8")
    sections = re.findall(r"^\[(.*)\]\n([^[]*)", text, re.MULTILINE)
    return {module: dict(map(_entry, names.split())) for module, names in sections}


def _entry(entry: str) -> tuple[str, Home | None]:
    name, _, home = entry.partition("@")
    if not home:
        return name, None
    if home.endswith(":"):
        return name, Home(home[:-1], "")
    module, _, its_name = home.rpartition(".")
    return name, Home(module, its_name)


def home(module: str, name: str) -> Home | None:
    """Return where a module of Fluid's has imported a name from; None if it is its own."""
    return table().get(module, {}).get(name)


def is_known(module: str, name: str) -> bool:
    """Return whether a module of Fluid's has this name, or a submodule of it."""
    return name in table().get(module, ()) or f"{module}.{name}" in table()


def instead(name: str) -> str:
    """Return the replacement for a name of Fluid's, given in full."""
    below = name.removeprefix(f"{ROOT}.")
    for hint, expressions in _INSTEAD.items():
        if any(re.match(expression, below) for expression in expressions):
            return hint
    return "see docs/differences.md, and dir() of the module for what is there"


def describe_missing(module: str, name: str, names: Iterable[str]) -> str:
    """Say why a module of Fluid's has no such name; ``names`` are those that it has."""
    shown = module.replace(FLUID, "fluid", 1)
    if is_known(module, name):
        return f"{shown}.{name} of Fluid 1.8.5 is not in hpcdist: {instead(f'{module}.{name}')}"
    if earlier := _EARLIER.get(f"{shown}.{name}"):
        return f"{shown}.{name} is not in Fluid 1.8.5, nor here: {earlier}"
    from hpcdist.base.nearest import did_you_mean  # imports difflib, which only errors need

    hint = did_you_mean(name, [n for n in names if not n.startswith("_")], most=3)
    return f"{shown} has no {name!r}, neither here nor in Fluid 1.8.5{hint}"
