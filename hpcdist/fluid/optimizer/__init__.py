"""Optimizers, by their short names and Fluid's long ones."""

from hpcdist.base.keywords import name_arguments_in
from hpcdist.fluid.optimizer.averages import (
    ExponentialMovingAverage,
    LookaheadOptimizer,
    ModelAverage,
)
from hpcdist.fluid.optimizer.base import Optimizer
from hpcdist.fluid.optimizer.dgc import DGCMomentumOptimizer
from hpcdist.fluid.optimizer.gradient_merge import GradientMergeOptimizer
from hpcdist.fluid.optimizer.kinds import (
    AdadeltaOptimizer,
    AdagradOptimizer,
    AdamaxOptimizer,
    AdamOptimizer,
    DecayedAdagradOptimizer,
    FtrlOptimizer,
    LambOptimizer,
    LarsMomentumOptimizer,
    MomentumOptimizer,
    RMSPropOptimizer,
    SGDOptimizer,
)
from hpcdist.fluid.optimizer.pipeline import PipelineOptimizer
from hpcdist.fluid.optimizer.private import DpsgdOptimizer
from hpcdist.fluid.optimizer.recompute import RecomputeOptimizer
from hpcdist.fluid.optimizer.wrapper import AnyOptimizer, OptimizerWrapper
from hpcdist.fluid.regularizer import append_regularization_ops as append_regularization_ops

SGD = SGDOptimizer
Momentum = MomentumOptimizer
LarsMomentum = LarsMomentumOptimizer
Adagrad = AdagradOptimizer
DecayedAdagrad = DecayedAdagradOptimizer
Adam = AdamOptimizer
Adamax = AdamaxOptimizer
RMSProp = RMSPropOptimizer
Ftrl = FtrlOptimizer
Adadelta = AdadeltaOptimizer
Lamb = LambOptimizer
Dpsgd = DpsgdOptimizer

__all__ = [
    "SGD",
    "Adadelta",
    "AdadeltaOptimizer",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "Adamax",
    "AdamaxOptimizer",
    "AnyOptimizer",
    "DGCMomentumOptimizer",
    "DecayedAdagrad",
    "DecayedAdagradOptimizer",
    "Dpsgd",
    "DpsgdOptimizer",
    "ExponentialMovingAverage",
    "Ftrl",
    "FtrlOptimizer",
    "GradientMergeOptimizer",
    "Lamb",
    "LambOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "LookaheadOptimizer",
    "ModelAverage",
    "Momentum",
    "MomentumOptimizer",
    "Optimizer",
    "OptimizerWrapper",
    "PipelineOptimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "RecomputeOptimizer",
    "SGDOptimizer",
]

name_arguments_in(__name__)
