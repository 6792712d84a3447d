"""Generate text with a trained run or a published model, each token looping until an exit criterion
fires.

python scripts/generate.py --run demo --prompt "The loop" --criterion acceleration --tau 1e-3
"""

from twoscale.exits.generate import main, parser
from twoscale.jobs import command

if __name__ == "__main__":
    command.run(main, parser())
