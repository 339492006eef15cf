"""The daily loop: a model that is trained on each day's data as it comes, for months.

`train` waits for the data of a pass, scores it by the model so far, trains it, saves and publishes.
"""

from hpcdist.fluid.online.days import splits
from hpcdist.fluid.online.loop import Report, train
from hpcdist.fluid.online.parts import Parts, of_dataset

__all__ = ["Parts", "Report", "of_dataset", "splits", "train"]
