# The tables of a release in place of those of a run: snakemake --config release=FOLDER_OR_ADDRESS, docs/release.md.
#
# in:  the release
# out: results/released/{run}/tables/*.parquet

if runs.release is not None:

    rule fetch_release:
        """Job: read the tables of a release"""
        output:
            tables=list(runs.released_tables.values()),
        log:
            "results/logs/fetch_release.log",
        localrule: True
        conda:
            "../../envs/analysis.yaml"
        params:
            **runs.params.script("fetch_release"),
            config=runs.params.released_files,
            # where the files are and how they are fetched does not change them
            release=untracked(runs.params.release_options),
        shell:
            "{params.command} --config {params.config:q} {params.release} {params.files} > {log:q} 2>&1"
