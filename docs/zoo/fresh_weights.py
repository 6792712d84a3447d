"""A copy of a Parcae folder with the initial weights of `train_gpt_parcae.py`
(coder-2011/parameter-golf 3a2b5374).

    python docs/zoo/fresh_weights.py MODEL_FOLDER NEW_FOLDER DEPTH

DEPTH is the number of layers that a token passes at the trained loops: 6 for recur2 and
core1recur4, 8 for recur3 and 4 for noloop. Seed 1337.
"""

import math
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

SIZE = 256  # hidden size of the four models
EMBEDDING_STD = 0.005
DECAY = math.sqrt(1 / 5)  # of the state by the diagonal injection


def drawn(name: str, like: Tensor, depth: int, generator: torch.Generator) -> Tensor:
    """The initial value of the parameter `name` with the shape of `like`."""
    if name.endswith("A_log"):
        return torch.zeros_like(like)
    if name.endswith("dt_bias"):
        step = torch.full_like(like, -math.log(DECAY))
        return step + torch.log(-torch.expm1(-step))  # softplus of it is `step`
    if name.endswith(".B") or name == "project_out.weight":
        return torch.eye(len(like))
    if like.ndim == 1:
        return torch.ones_like(like)
    std = EMBEDDING_STD if name.startswith("tok_emb") else math.sqrt(2 / (5 * SIZE))
    if name.endswith(("c_proj.weight", "mlp.proj.weight")):
        std /= math.sqrt(2 * depth)
    return torch.nn.init.trunc_normal_(
        torch.empty(like.shape), 0.0, std, -3 * std, 3 * std, generator=generator
    )


def main(source: str, target: str, depth: str) -> None:
    shutil.copytree(source, target)
    generator = torch.Generator().manual_seed(1337)
    weights = load_file(Path(source, "model.safetensors"))
    fresh = {name: drawn(name, value, int(depth), generator) for name, value in weights.items()}
    Path(target, "model.safetensors").unlink()
    save_file(fresh, Path(target, "model.safetensors"))


if __name__ == "__main__":
    main(*sys.argv[1:])
