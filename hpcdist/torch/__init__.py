"""torch.distributed over MPI: ``import hpcdist.torch`` registers the backend ``hpcdist``.

Needs torch (``pip install hpcdist[torch]``). Nothing else of hpcdist imports this.
"""

from __future__ import annotations

from hpcdist.torch.takeover import register

register()
