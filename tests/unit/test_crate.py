"""Which jobs made a file, from Snakemake's records on the disk."""

import json
from base64 import urlsafe_b64encode

from twoscale.analysis.crate import Job, jobs_behind, read_records


def record(rule, command, inputs=(), start=None, end=None):
    return {"rule": rule, "shellcmd": command, "input": list(inputs), "starttime": start, "endtime": end}


RECORDS = {
    "results/text": record("prepare_text", "prepare", ["/data/a book.txt"], 1.0, 2.0),
    "results/weights": record("train", "train", ["results/text"], 3.0, 6.0),
    "results/log": record("train", "train", ["results/text"], 2.5, 5.0),
    "results/table": record("measure", "measure", ["results/weights", "results/text"], 7.0, 8.0),
    "results/other": record("measure", "measure another", ["results/weights"], 7.0, 8.0),
}


def test_the_jobs_behind_a_result_are_those_of_its_inputs_too_in_the_order_of_their_start():
    assert jobs_behind(["results/table"], RECORDS) == [
        Job("prepare_text", ("/data/a book.txt",), ("results/text",), 1.0, 2.0),
        Job("train", ("results/text",), ("results/weights",), 3.0, 6.0),
        Job("measure", ("results/weights", "results/text"), ("results/table",), 7.0, 8.0),
    ]


def test_outputs_of_one_job_are_one_job_and_of_two_jobs_of_a_rule_two():
    first, *_, last, another = jobs_behind(["results/table", "results/other", "results/log"], RECORDS)
    assert first.rule == "prepare_text"
    assert {last.outputs, another.outputs} == {("results/table",), ("results/other",)}
    (training,) = [job for job in jobs_behind(["results/log", "results/table"], RECORDS) if job.rule == "train"]
    assert training == Job("train", ("results/text",), ("results/log", "results/weights"), 2.5, 6.0)


def test_a_file_without_a_record_has_no_job_and_a_record_without_times_has_none():
    assert jobs_behind(["results/copied"], RECORDS) == []
    (job,) = jobs_behind(["a"], {"a": record("touched", None)})
    assert (job.start, job.end) == (None, None)


def test_records_of_long_paths_are_read_and_damaged_ones_are_left_out(tmp_path):
    long = "results/" + "run/" * 70 + "table"
    name = urlsafe_b64encode(long.encode()).decode()
    (tmp_path / f"@{name[:254]}").mkdir()
    (tmp_path / f"@{name[:254]}" / name[254:]).write_text(json.dumps({"rule": "long"}))
    (tmp_path / urlsafe_b64encode(b"results/a").decode()).write_text(json.dumps({"rule": "short"}))
    (tmp_path / urlsafe_b64encode(b"results/b").decode()).write_text('{"rule": ')
    (tmp_path / urlsafe_b64encode(b"results/c").decode()).write_text("[]")
    (tmp_path / "no base64").write_text('{"rule": "none"}')
    assert read_records(tmp_path) == {long: {"rule": "long"}, "results/a": {"rule": "short"}}
    assert read_records(tmp_path / "absent") == {}
