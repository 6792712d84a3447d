# The tables of a release in place of those of a run: snakemake --config release=FOLDER_OR_ADDRESS, docs/release.md.
#
# in:  the release
# out: results/released/{run}/tables/*.parquet

from twoscale import config as configs
from twoscale.base import canonical_json
from twoscale.workflow.runs import RELEASED

verdicts = f"{runs.selected}/tables/claims.parquet"  # are judged again
released = {name: file and vars(file) for name, file in runs.release.tables.items() if name != verdicts}
download = canonical_json({"download": configs.plain(runs.release.download)})


rule fetch_release:
    """Job: read the tables of a release"""
    output:
        tables=[f"{RELEASED}/{name}" for name in released],
    log:
        "results/logs/fetch_release.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **runs.params.script(
            "fetch_release",
            config=lambda wildcards: canonical_json({"files": released}),
            # where the files are and how they are fetched does not change them
            download=lambda wildcards: download,
        ),
        source=untracked(lambda wildcards: runs.release.source),
    shell:
        "{params.command} --job {params.job} --source {params.source:q} {params.files} > {log:q} 2>&1"
