"""``paddle.nn.decode``: decoders, which ``dynamic_decode`` repeats until sentences have ended."""

from hpcdist.fluid import layers
from hpcdist.fluid.layers import Decoder, dynamic_decode


class BeamSearchDecoder(layers.BeamSearchDecoder):
    """Fluid's; ends and lengths are those of its states, whose beams change their places."""

    tracks_own_finished = True


__all__ = ["BeamSearchDecoder", "Decoder", "dynamic_decode"]
