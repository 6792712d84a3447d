# A page to explore: the paths of the tokens of one held-out sequence, with their predictions and exits.
#
# in:  the last checkpoint, data/val.bin, the tokenizer
# out: explore/*.parquet, results/explore.html
#
# Not part of the default target: it opens the weights twice more, which takes minutes for a published model on a CPU.

from twoscale.config import text_label
from twoscale.workflow import criterion_files

EXPLORE_TABLES = ("tokens", "states", "components", "exits")


rule extract_explore:
    input:
        # as for benchmark_exits: a user's criterion that fails ends here, before outputs of this job are deleted
        runs.each_criterion(QUALITY, "exit", of_users=True),
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
        tokenizer=runs.tokenizer_file,
        probe=runs.probe_file("exit"),
    output:
        **{name: f"results/{{run}}/explore/{name}.parquet" for name in EXPLORE_TABLES},
    log:
        "results/{run}/logs/extract_explore.log",
    benchmark:
        "results/{run}/benchmarks/extract_explore.tsv"
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("trajectories", memory=8000, minutes=60),
    params:
        **torch_script("extract_explore"),
        config=runs.slice(
            *("run", "seed", "device", "model", "trajectories", "exits", "explore", "trajectory_sequences"),
            tokenizer=lambda config: config.tokenizer.name,
            criterion_files=lambda config: criterion_files(config.exits.criteria),
        ),
        tables=table_columns(*(f"explore_{name}" for name in EXPLORE_TABLES)),
    shell:
        JOB


rule write_explore_page:
    input:
        **{name: f"results/{runs.selected}/explore/{name}.parquet" for name in EXPLORE_TABLES},
        template=SCRIPTS.parent / "workflow" / "report" / "explore.html",
    output:
        page=report(
            "results/explore.html",
            caption="../report/explore.rst",
            category="Explore",
            labels={"page": "tokens on their way through the loops"},
        ),
    log:
        "results/logs/write_explore_page.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("write_explore_page"),
        config=runs.slice("run", text=lambda config: text_label(config.data)),
        caption=runs.caption(),
    shell:
        JOB


rule explore:
    input:
        runs.explore_page,
