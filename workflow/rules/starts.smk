# The same model from every start of the projection, under every seed.
#
# in:  tables/{loop_sequences,training}.parquet of all runs of the study
# out: tables/starts.parquet of the selected run, results/starts.md; results/starts.pdf is drawn from the table

from twoscale.config import text_label


rule compare_starts:
    input:
        loops=runs.study_tables("starts", "loop_sequences"),
        training=runs.study_tables("starts", "training"),
    output:
        table=TABLE.format("starts"),
        page="results/starts.md",
    log:
        "results/logs/compare_starts.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("compare_starts"),
        config=runs.slice("run", "seed", text=lambda config: text_label(config.data), runs=runs.start_labels),
        tables=table_columns("starts"),
    shell:
        JOB


rule starts:
    input:
        runs.figure_files("starts"),
        "results/starts.md" if runs.figure_files("starts") else [],
