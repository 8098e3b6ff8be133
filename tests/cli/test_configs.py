"""`polytile configs`: what would be tried, and why each other config is left out."""

from __future__ import annotations

from tests.cli.helpers import run


def test_every_row_is_tried_or_left_out_with_a_reason() -> None:
    result = run("configs", "cuda", 64, 64, 64)
    assert result.exit_code == 0
    assert "cuda mm 64×64×64 bfloat16 on NVIDIA H100 80GB HBM3: 15 tried" in result.output and "4 left out" in result.output
    assert "becomes the same config as 64x128x32 s3 w4" in result.output and "from 128x128x64 s5 w8" in result.output


def test_an_exhaustive_space_is_summed_up_by_rule() -> None:
    result = run("configs", "cuda", 512, 512, 512, "--exhaustive", "--device", "A100", "--cap", 9)
    assert ": 9 tried" in result.output and "shared memory" in result.output and "registers" in result.output


def test_a_cpu_has_register_tiles() -> None:
    result = run("configs", "cpu", 256, 512, 512)
    assert result.exit_code == 0 and "register tiles" in result.output and "predicted" in result.output


def test_names_that_are_not_known_are_refused() -> None:
    for words, message in (
        (("npu", 1, 2, 3), "there is no device family 'npu'"),
        (("cuda", 1, 2, 3, "--table", "conv"), "holds no configs of matrix products"),
        (("cuda", 1, 2, 3, "--dtype", "half"), "there is no type 'half' here"),
        (("cuda", 0, 64, 64), "Invalid value for"),
        (("cuda", 1, 2, 3, "--device", "Z9"), "no GPU named 'Z9'"),
        (("cpu", 1, 2, 3, "--dtype", "float16"), "no register tiles for float16"),
    ):
        result = run("configs", *words)
        assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output
