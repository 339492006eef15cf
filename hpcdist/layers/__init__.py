"""Functions that append operators to the default main program."""

from hpcdist.layers import math_op, weight_norm  # noqa: F401 - what Variables and ParamAttrs can do
from hpcdist.layers.activation import *  # noqa: F403
from hpcdist.layers.arrays import *  # noqa: F403
from hpcdist.layers.beam_search import *  # noqa: F403
from hpcdist.layers.boxes import *  # noqa: F403
from hpcdist.layers.cells import *  # noqa: F403
from hpcdist.layers.checks import checked as _checked
from hpcdist.layers.control_flow import *  # noqa: F403
from hpcdist.layers.creation import *  # noqa: F403
from hpcdist.layers.crf import *  # noqa: F403
from hpcdist.layers.decode_helpers import *  # noqa: F403
from hpcdist.layers.decoders import *  # noqa: F403
from hpcdist.layers.distributions import *  # noqa: F403
from hpcdist.layers.embedding import *  # noqa: F403
from hpcdist.layers.gather_scatter import *  # noqa: F403
from hpcdist.layers.group_instance_norm import *  # noqa: F403
from hpcdist.layers.image import *  # noqa: F403
from hpcdist.layers.instance_tags import *  # noqa: F403
from hpcdist.layers.io import *  # noqa: F403
from hpcdist.layers.learning_rate_scheduler import *  # noqa: F403
from hpcdist.layers.loops import *  # noqa: F403
from hpcdist.layers.loss import *  # noqa: F403
from hpcdist.layers.math import *  # noqa: F403
from hpcdist.layers.metric import *  # noqa: F403
from hpcdist.layers.nn import *  # noqa: F403
from hpcdist.layers.norms_distances import *  # noqa: F403
from hpcdist.layers.pair_loss import *  # noqa: F403
from hpcdist.layers.print_py_func import *  # noqa: F403
from hpcdist.layers.proposals import *  # noqa: F403
from hpcdist.layers.random import *  # noqa: F403
from hpcdist.layers.rare_activation import *  # noqa: F403
from hpcdist.layers.rearrange import *  # noqa: F403
from hpcdist.layers.recurrent import *  # noqa: F403
from hpcdist.layers.resize import *  # noqa: F403
from hpcdist.layers.roi_pool import *  # noqa: F403
from hpcdist.layers.sampled_softmax import *  # noqa: F403
from hpcdist.layers.sequence import *  # noqa: F403
from hpcdist.layers.ssd import *  # noqa: F403
from hpcdist.layers.stacked_rnn import *  # noqa: F403
from hpcdist.layers.step_rnn import *  # noqa: F403
from hpcdist.layers.tensor import *  # noqa: F403
from hpcdist.layers.torch_modules import *  # noqa: F403
from hpcdist.layers.volume import *  # noqa: F403

__all__ = [name for name, made in globals().items() if callable(made) and not name.startswith("_")]

for _name in __all__:
    if not isinstance(globals()[_name], type):
        globals()[_name] = _checked(_name, globals()[_name])
