"""What Fluid has under ``fluid.contrib``."""

from hpcdist.optimizer.weight_decay import extend_with_decoupled_weight_decay

__all__ = ["extend_with_decoupled_weight_decay"]
