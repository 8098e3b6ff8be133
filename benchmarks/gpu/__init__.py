"""Measurements on an NVIDIA GPU: loops (`python -m benchmarks.gpu`), matrix products (`gemm`), attention (`attention_kernels`),
models, what the priors are fitted to and judged by (`loops`, `loops_code`, `prior_fit`, `attention_fit`), and loops by three
addressings (`addressing`). The other modules are parts of these."""
