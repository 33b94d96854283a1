"""Puts this folder on the path, for `samples` and `same`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
