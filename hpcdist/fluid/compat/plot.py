"""Curves of what a script measures: ``paddle.utils.plot.Ploter``.

Pictures are made by matplotlib, in a notebook shown by IPython; with ``DISABLE_PLOT=True`` in the
environment neither is needed and nothing is drawn. Of a job, rank 0 draws.
"""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import HpcdistError
from hpcdist.base.setting import environment
from hpcdist.comm.process_manager import launched_rank


class PlotData:
    """The points of one curve."""

    def __init__(self) -> None:
        self.step: list[Any] = []
        self.value: list[Any] = []

    def append(self, step: Any, value: Any) -> None:
        """Add a point."""
        self.step.append(step)
        self.value.append(value)

    def reset(self) -> None:
        """Forget all points."""
        self.step, self.value = [], []


class Ploter:
    """Draws one curve for each of the titles that it is made with."""

    def __init__(self, *args: str) -> None:
        self._curves = {title: PlotData() for title in args}

    def append(self, title: str, step: Any, value: Any) -> None:
        """Add a point to a curve; HpcdistError for a title that the Ploter was not made with."""
        if title not in self._curves:
            raise HpcdistError(f"Ploter.append: no curve {title!r}; there are {[*self._curves]}")
        self._curves[title].append(step, value)

    def plot(self, path: str | None = None) -> None:
        """Draw all curves that have points, into a file, or without ``path`` into the notebook."""
        if environment(None).get("DISABLE_PLOT") == "True" or launched_rank():
            return
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise HpcdistError(
                "Ploter.plot: pictures are made by matplotlib, which cannot be imported "
                f"({error}): install it, or set DISABLE_PLOT=True"
            ) from error
        drawn = {title: curve for title, curve in self._curves.items() if curve.step}
        for curve in drawn.values():
            plt.plot(curve.step, curve.value)
        plt.legend(list(drawn), loc="upper left")
        if path is None:
            from IPython import display

            display.clear_output(wait=True)
            display.display(plt.gcf())
        else:
            plt.savefig(path)
        plt.gcf().clear()

    def reset(self) -> None:
        """Forget the points of all curves."""
        for curve in self._curves.values():
            curve.reset()
