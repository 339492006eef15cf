import paddle, paddle.fluid as fluid, paddle.fluid.core as core
import paddle.dataset.uci_housing
import paddle.fluid.unique_name as unique_name
from paddle.fluid import layers, compiler, average
import paddle.fluid.parallel_executor, paddle.fluid.param_attr
from paddle.fluid.transpiler import HashName
