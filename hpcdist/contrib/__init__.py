"""What Fluid has under ``fluid.contrib``."""

from hpcdist.contrib import matching, rows
from hpcdist.contrib.decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder
from hpcdist.contrib.matching import *  # noqa: F403
from hpcdist.contrib.reader import distributed_batch_reader
from hpcdist.contrib.rows import *  # noqa: F403
from hpcdist.layers.cells import BasicGRUUnit, BasicLSTMUnit
from hpcdist.layers.stacked_rnn import basic_gru, basic_lstm
from hpcdist.optimizer import mixed_precision
from hpcdist.optimizer.mixed_precision import AutoMixedPrecisionLists, decorate
from hpcdist.optimizer.weight_decay import extend_with_decoupled_weight_decay

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
