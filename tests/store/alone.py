"""Imported first by child processes of the tests: `polytile` becomes a bare package, so that a child that needs the
store imports that room and not the whole compiler with torch."""

from __future__ import annotations

import sys
import types
from pathlib import Path

package = types.ModuleType("polytile")
package.__path__ = [str(Path(__file__).parents[2] / "src" / "polytile")]
sys.modules["polytile"] = package
