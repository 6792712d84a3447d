# Base rules: what many jobs share, for `use rule torch_job as NAME with:`. They are no targets, and no file leads to them.
# A derived rule takes a relative path for one from its own file, so those of environments are absolute.
# So a workflow cannot import a rule of this one without all others.


rule torch_job:
    """Base: a job of scripts/measure.py, with torch, on a checkpoint and held-out text; reruns restore its result"""
    log:
        "results/logs/torch_job.log",
    conda:
        str(PROJECT / "envs" / "torch.yaml")
    shell:
        "{params.command} --job {params.job} --threads {threads} {params.files} > {log:q} 2>&1"


# A rule that is derived from a local one is not local by itself.
rule table_job:
    """Base: a job without torch, on tables, which runs where Snakemake runs"""
    log:
        "results/logs/table_job.log",
    localrule: True
    conda:
        str(PROJECT / "envs" / "analysis.yaml")
    shell:
        JOB
