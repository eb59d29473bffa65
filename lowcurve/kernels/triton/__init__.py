"""The operators on GPUs: kernels written in Triton, which comes with PyTorch's builds for NVIDIA and AMD."""
