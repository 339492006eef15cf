"""``paddle.nn.layer``: classes of layers. Making one makes its parameters; calling it appends."""

from hpcdist.fluid.compat.paddle2.nn.layer.activation import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.nn.layer.common import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.nn.layer.container import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.nn.layer.conv import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer  # noqa: F401
from hpcdist.fluid.compat.paddle2.nn.layer.norm import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.nn.layer.rnn import *  # noqa: F403
from hpcdist.fluid.compat.paddle2.nn.layer.transformer import *  # noqa: F403
