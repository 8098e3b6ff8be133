"""Measurements on an NVIDIA GPU: loops (`python -m benchmarks.gpu`), matrix products (`gemm`), models, and what the priors are
fitted to and judged by (`loops`, `loops_code`, `prior_fit`). The other modules are parts of these."""
