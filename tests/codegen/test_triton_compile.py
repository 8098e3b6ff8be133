"""What Triton is told when it compiles a generated kernel."""

from __future__ import annotations

import pytest

from polytile.codegen.triton.compile import FUSION, _options
from polytile.codegen.triton.kernel import Launch


@pytest.mark.parametrize(("said", "told"), [(None, {"enable_fp_fusion": True}), ("0", {}), ("1", {})])
def test_products_and_sums_are_fused_unless_the_environment_speaks(
    said: str | None, told: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton 3.9 warns that a later one will not fuse by itself."""
    monkeypatch.delenv(FUSION, raising=False)
    if said is not None:
        monkeypatch.setenv(FUSION, said)
    launch = Launch("", (), (), (), 4, 2, ())  # type: ignore[arg-type]  # the grid is no part of what is compiled
    assert _options(launch) == {"num_warps": 4, "num_stages": 2, **told}
