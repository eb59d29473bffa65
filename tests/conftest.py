"""Settings that must be in place before the first convolution of a test process."""

import os

# Some virtual machines announce AMX and then refuse it: PyTorch's own bfloat16 backward ends in SIGILL there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# As in `make test`: sums round by the number of threads, and a short training with GradReg at β = 1000 is chaotic.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
