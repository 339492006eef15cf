"""What Fluid has under ``fluid.contrib.decoder``."""

from hpcdist.fluid.contrib.decoder import beam_search_decoder
from hpcdist.fluid.contrib.decoder.beam_search_decoder import (
    BeamSearchDecoder,
    InitState,
    StateCell,
    TrainingDecoder,
)

__all__ = [
    "BeamSearchDecoder",
    "InitState",
    "StateCell",
    "TrainingDecoder",
    "beam_search_decoder",
]
