"""Writes docs/reference/openapi.json from src/holdfast/faces/http/openapi.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from holdfast.faces.http.openapi import document  # noqa: E402

if __name__ == "__main__":
    page = ROOT / "docs" / "reference" / "openapi.json"
    page.write_text(json.dumps(document(), indent=1) + "\n")
