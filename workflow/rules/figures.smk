# All figures, one rule for each row of FIGURES: plot_<name> draws results/<name>.pdf with twoscale.figures.<name>.
#
# in:  the tables of the row
# out: results/<name>.pdf

for figure in FIGURES:

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
            command=untracked(runs.command("draw", figure.name)),
            files=file_options,
            code=runs.code("draw", f"twoscale.figures.{figure.name}"),
            config=runs.figure_slice(figure),
            caption=untracked(lambda wildcards, figure=figure: runs.caption(figure)),
        shell:
            JOB


def figures_of(target):
    """Files of a target rule that shows figures."""
    return runs.figure_files(FIGURES, target)


rule supplementary:
    input:
        figures_of("supplementary"),


rule variants:
    input:
        figures_of("variants"),
