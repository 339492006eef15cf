"""What ``paddle.fluid.incubate.fleet.collective`` means: refused when it is imported."""

from hpcdist.fleet.refusal import refuse_collective

refuse_collective()
