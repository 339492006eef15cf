"""Fluid's module ``param_attr``."""

from hpcdist.layers.param_attr import ParamAttr, WeightNormParamAttr

__all__ = ["ParamAttr", "WeightNormParamAttr"]
