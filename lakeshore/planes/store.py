"""`Store`: all verbs of the contract over an engine's primitives, put together from their rooms.

Producing, claiming, ending, journals and looking each have a file of their own (`planes/store_*.py`). A verb
is: check the arguments, run one transaction, ring.
"""

from __future__ import annotations

from lakeshore.planes.store_endings import Endings
from lakeshore.planes.store_journals import Journals
from lakeshore.planes.store_looks import Looks
from lakeshore.planes.store_producers import Producers
from lakeshore.planes.store_prune import Pruning


class Store(Producers, Endings, Journals, Looks, Pruning):
    """The verbs. An engine subclasses it with the primitives that `Engine` marks abstract."""
