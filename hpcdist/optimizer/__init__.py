"""Optimizers, by their short names and Fluid's long ones."""

from hpcdist.optimizer.averages import (
    ExponentialMovingAverage,
    LookaheadOptimizer,
    ModelAverage,
)
from hpcdist.optimizer.base import Optimizer
from hpcdist.optimizer.dgc import DGCMomentumOptimizer
from hpcdist.optimizer.gradient_merge import GradientMergeOptimizer
from hpcdist.optimizer.kinds import (
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
from hpcdist.optimizer.pipeline import PipelineOptimizer
from hpcdist.optimizer.private import DpsgdOptimizer
from hpcdist.optimizer.recompute import RecomputeOptimizer
from hpcdist.optimizer.wrapper import AnyOptimizer, OptimizerWrapper
from hpcdist.regularizer import append_regularization_ops as append_regularization_ops

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
