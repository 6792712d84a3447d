"""Rule aggregate_calibration: thresholds that keep a promise about quality, and whether it was kept elsewhere."""

import pandas as pd

from twoscale import command, tables
from twoscale.studies.calibration.compare import calibrate, chosen_thresholds


def main(arguments) -> None:
    config = arguments.config
    runs, paths = (
        pd.concat([tables.read(f"calibration_{name}", path) for path in getattr(arguments, f"{name}_files")])
        for name in ("runs", "paths")
    )
    calibration = calibrate(runs, config.promises, config.max_loops, config.seed)
    tables.write("calibration", calibration, arguments.calibration)
    tables.write("calibrated_thresholds", chosen_thresholds(calibration, paths), arguments.thresholds)


if __name__ == "__main__":
    outputs, lists = ("calibration", "thresholds"), ("runs_files", "paths_files")
    command.run(main, command.parser(__doc__, files=outputs, lists=lists))
