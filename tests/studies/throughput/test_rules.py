"""The rules of the study: planned, and run to the end."""

import pandas as pd
import pytest

from tests.workflow.test_users_criterion import CONFIG, CRITERION, DECISION, OF_THE_BATCH, tables


@pytest.mark.runs
def test_a_criterion_of_the_throughput_alone_is_tried_before_the_others_lose_their_tables(editable):
    table = "results/tiny/tables/throughput.parquet"
    editable.succeed(table)
    before = tables(editable)
    (editable.root / "patience.py").write_text(CRITERION.replace(DECISION, OF_THE_BATCH))
    editable.configure(throughput=CONFIG["exits"])
    assert editable.plan(table) == {"try_criterion": 1, "benchmark_throughput": 1}
    done = editable.run(table)
    assert done.returncode != 0
    sentence = "error: exit criterion 'patience' of the file patience.py at 2: found 3 evaluations of token 0"
    assert sentence in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert tables(editable) == before
    (editable.root / "patience.py").write_text(CRITERION)
    editable.succeed(table)
    assert "patience" in set(pd.read_parquet(editable.root / table)["criterion"])
    assert editable.plan(table) == {}
