import os

import torch

# Triton reads the variable when it is imported, which only the tests of its kernels do.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
