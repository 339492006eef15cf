"""What Fluid has under ``fluid.contrib``."""

from hpcdist.fluid.contrib import matching, rows
from hpcdist.fluid.contrib.decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder
from hpcdist.fluid.contrib.matching import *  # noqa: F403
from hpcdist.fluid.contrib.reader import distributed_batch_reader
from hpcdist.fluid.contrib.rows import *  # noqa: F403
from hpcdist.fluid.layers.cells import BasicGRUUnit, BasicLSTMUnit
from hpcdist.fluid.layers.stacked_rnn import basic_gru, basic_lstm
from hpcdist.fluid.optimizer import mixed_precision
from hpcdist.fluid.optimizer.mixed_precision import AutoMixedPrecisionLists, decorate
from hpcdist.fluid.optimizer.weight_decay import extend_with_decoupled_weight_decay

__all__ = [
    "AutoMixedPrecisionLists",
    "BasicGRUUnit",
    "BasicLSTMUnit",
    "BeamSearchDecoder",
    "InitState",
    "StateCell",
    "TrainingDecoder",
    "basic_gru",
    "basic_lstm",
    "decorate",
    "distributed_batch_reader",
    "extend_with_decoupled_weight_decay",
    "mixed_precision",
    *matching.__all__,
    *rows.__all__,
]
