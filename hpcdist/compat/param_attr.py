"""Fluid's module ``param_attr``."""

from hpcdist.layers.param_attr import ParamAttr

__all__ = ["ParamAttr"]
