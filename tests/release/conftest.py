"""What the tests of exports share. It is imported before transformers, which reads its variables
once.
"""

import atexit
import os
import shutil
import tempfile

import torch

# copies of the code of exported models, which transformers imports from there; no test needs a
# network
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="hf-home-")
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)
os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)
