"""Write docs/seeds.md, the summary of the tables in this folder; each run has released tables in
docs/.

cp results/demo/tables/seeds.parquet docs/seeds/demo.parquet
python -m docs.seeds.seeds && python -m docs.results
"""

from pathlib import Path

import pandas as pd
from docs import results

from twoscale.report.render import blocks
from twoscale.studies.seeds.draw import summary

DOCS = Path(__file__).parents[1]
CLOSING = """\
These verdicts follow the rules of commit 897cd43d, which knew one reading of each claim, and those on claim 4 the present
ones. [How claims are judged](judging.md#several-seeds) explains the intervals. [Results](results.md) has the numbers of each
claim, [seeds/](seeds/) the tables."""

if __name__ == "__main__":
    over_seeds = [
        found for found in results.columns(DOCS, results.judged(DOCS)) if not found.each.empty
    ]
    frames = [(pd.concat([found.each, found.rows]), found) for found in over_seeds]
    summaries = (summary(frame, found.facts["text"], found.scales) for frame, found in frames)
    (DOCS / "seeds.md").write_text(blocks(*summaries, CLOSING), encoding="utf-8")
