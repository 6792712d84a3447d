# All figures, one rule for each row of runs.figures: plot_<name> draws results/<name>.pdf with twoscale.figures.<name>.
#
# in:  the tables of the row
# out: results/<name>.pdf

for figure in runs.figures:

    rule:
        name:
            f"plot_{figure.name}"
        input:
            **runs.figure_inputs(figure),
        output:
            figure=report(
                f"results/{figure.name}.pdf", caption=f"../report/{figure.name}.rst", category=figure.category
            ),
        log:
            f"results/logs/plot_{figure.name}.log",
        localrule: True
        conda:
            "../../envs/analysis.yaml"
        params:
            command=runs.command("draw", figure.name),
            files=file_options,
            code=runs.code("draw", f"twoscale.figures.{figure.name}"),
            config=runs.figure_slice(figure),
            caption=runs.caption(figure),
        shell:
            JOB


rule supplementary:
    input:
        runs.figure_files("supplementary"),


rule variants:
    input:
        runs.figure_files("variants"),
