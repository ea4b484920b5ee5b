"""Takes the pictures in docs/pictures again: `python scripts/dashboard_pictures.py`.

Needs a browser (apt-get install chromium) and about a minute. A test takes the same ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

if __name__ == "__main__":
    from support.pictures import take

    take(ROOT / "docs" / "pictures")
