"""Functions that append operators to the default main program."""

from hpcdist.base.keywords import name_arguments_in as _name_arguments_in
from hpcdist.fluid.layers import math_op, weight_norm  # noqa: F401 - what Variables and ParamAttrs can do
from hpcdist.fluid.layers.activation import *  # noqa: F403
from hpcdist.fluid.layers.arrays import *  # noqa: F403
from hpcdist.fluid.layers.beam_search import *  # noqa: F403
from hpcdist.fluid.layers.boxes import *  # noqa: F403
from hpcdist.fluid.layers.cells import *  # noqa: F403
from hpcdist.fluid.layers.checks import check_methods as _check_methods
from hpcdist.fluid.layers.checks import checked as _checked
from hpcdist.fluid.layers.constant import *  # noqa: F403
from hpcdist.fluid.layers.control_flow import *  # noqa: F403
from hpcdist.fluid.layers.creation import *  # noqa: F403
from hpcdist.fluid.layers.crf import *  # noqa: F403
from hpcdist.fluid.layers.decode_helpers import *  # noqa: F403
from hpcdist.fluid.layers.decoders import *  # noqa: F403
from hpcdist.fluid.layers.distributions import *  # noqa: F403
from hpcdist.fluid.layers.embedding import *  # noqa: F403
from hpcdist.fluid.layers.gather_scatter import *  # noqa: F403
from hpcdist.fluid.layers.group_instance_norm import *  # noqa: F403
from hpcdist.fluid.layers.image import *  # noqa: F403
from hpcdist.fluid.layers.instance_tags import *  # noqa: F403
from hpcdist.fluid.layers.io import *  # noqa: F403
from hpcdist.fluid.layers.learning_rate_scheduler import *  # noqa: F403
from hpcdist.fluid.layers.loops import *  # noqa: F403
from hpcdist.fluid.layers.loss import *  # noqa: F403
from hpcdist.fluid.layers.math import *  # noqa: F403
from hpcdist.fluid.layers.metric import *  # noqa: F403
from hpcdist.fluid.layers.nn import *  # noqa: F403
from hpcdist.fluid.layers.norms_distances import *  # noqa: F403
from hpcdist.fluid.layers.pair_loss import *  # noqa: F403
from hpcdist.fluid.layers.print_py_func import *  # noqa: F403
from hpcdist.fluid.layers.proposals import *  # noqa: F403
from hpcdist.fluid.layers.random import *  # noqa: F403
from hpcdist.fluid.layers.rare_activation import *  # noqa: F403
from hpcdist.fluid.layers.rearrange import *  # noqa: F403
from hpcdist.fluid.layers.recurrent import *  # noqa: F403
from hpcdist.fluid.layers.resize import *  # noqa: F403
from hpcdist.fluid.layers.roi_pool import *  # noqa: F403
from hpcdist.fluid.layers.sampled_softmax import *  # noqa: F403
from hpcdist.fluid.layers.sequence import *  # noqa: F403
from hpcdist.fluid.layers.ssd import *  # noqa: F403
from hpcdist.fluid.layers.stacked_rnn import *  # noqa: F403
from hpcdist.fluid.layers.step_rnn import *  # noqa: F403
from hpcdist.fluid.layers.tensor import *  # noqa: F403
from hpcdist.fluid.layers.torch_modules import *  # noqa: F403
from hpcdist.fluid.layers.volume import *  # noqa: F403

__all__ = [name for name, made in globals().items() if callable(made) and not name.startswith("_")]

_name_arguments_in(__name__)
for _name in __all__:
    if isinstance(globals()[_name], type):
        _check_methods(globals()[_name])
    else:
        globals()[_name] = _checked(_name, globals()[_name])
