"""Write solver_losses.parquet and solver_depths.parquet from what docs/examples/shortest_path.py wrote.

    python docs/arena/keep.py results/shortest_path/arena/edges
    twoscale exits check docs/arena/solver_losses.parquet docs/arena/solver_depths.parquet --out check

Losses are rounded to 1e-5 nats. Kept are the criteria of the table in docs/arena.md, at thresholds of
half decades and the best one of entropy over fixed loops.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
CRITERIA = ("entropy", "minp_kl", "kl", "cosine", "direction_step_norm", "step_norm")
CRITERIA += ("acceleration", "direction_acceleration")
BEST = {("entropy", -3)}  # further thresholds, in quarters of a decade


def is_kept(criterion: str, threshold: float) -> bool:
    quarters = round(4 * np.log10(threshold))
    return criterion in CRITERIA and (quarters % 2 == 0 or (criterion, quarters) in BEST)


def write(frame: pd.DataFrame, name: str) -> None:
    """The rows of a token follow each other, which needs the least space."""
    small = {"sequence": pa.int16(), "position": pa.int8(), "depth": pa.int8()}
    columns = {key: pa.array(frame[key], small.get(key)) for key in frame}
    table = pa.table(columns)
    pq.write_table(
        table, HERE / name, compression="zstd", compression_level=22, row_group_size=len(table)
    )


def main(folder: Path) -> None:
    token = ["sequence", "position"]
    losses = pd.read_parquet(folder / "losses.parquet").sort_values([*token, "depth"])
    write(losses.assign(loss=losses["loss"].round(5).astype(np.float32)), "solver_losses.parquet")
    depths = pd.read_parquet(folder / "depths.parquet")
    points = depths[["criterion", "threshold"]].drop_duplicates()
    kept = points[[is_kept(*point) for point in points.itertuples(index=False)]]
    depths = depths.merge(kept).sort_values(["criterion", *token, "threshold"])
    write(depths, "solver_depths.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
