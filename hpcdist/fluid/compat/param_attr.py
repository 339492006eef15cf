"""Fluid's module ``param_attr``."""

from hpcdist.fluid.layers.param_attr import ParamAttr, WeightNormParamAttr

__all__ = ["ParamAttr", "WeightNormParamAttr"]
