"""Write the table of docs/reference/events.md from src/holdfast/core/session/events.py.

The text around the table is written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from holdfast.core.session.events import page  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "events.md"
BEGIN, END = "<!-- rendered: scripts/render_events.py -->\n", "\n<!-- end -->"

if __name__ == "__main__":
    head, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}{page()}{END}{rest.partition(END)[2]}")
