# All figures, one rule for each row of runs.figures: plot_<name> draws one with `figure.function`.
#
# in:  the tables of the row
# out: results/{run}/figures/<name>.pdf, and the same picture for the report as .svg: sharp at every size, a browser shows
#      it without a viewer, and it is smaller than a PNG that is as wide as a screen;
#      copies of the selected run's figures and pages in results/


for figure in runs.figures:

    rule:
        name:
            f"plot_{figure.name}"
        input:
            **runs.figures.inputs(figure),
        output:
            figure=runs.figures.drawn(f"{figure.name}.pdf"),
            picture=report(
                runs.figures.drawn(f"{figure.name}.svg"),
                caption=str(PROJECT / figure.caption_file),
                category=figure.category,
                labels={"figure": figure.label},
            ),
        log:
            f"results/logs/plot_{figure.name}.log",
        localrule: True
        conda:
            "../../envs/analysis.yaml"
        params:
            **runs.params.script("draw", figure.function, modules=[figure.module]),
            config=runs.figures.slice(figure),
            caption=runs.figures.caption(figure),
        shell:
            JOB


# Copies, not the figures themselves: selecting another run copies its figures here without drawing them again.
rule show_figure:
    """Job: copy a figure of the selected run to results/"""
    input:
        unpack(runs.figures.to_show),
    output:
        figure="results/{figure}.pdf",
        picture="results/{figure}.svg",
    log:
        "results/logs/show_{figure}.log",
    wildcard_constraints:
        figure=alternatives(figure.name for figure in runs.figures),
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    shell:
        "(cp {input.figure:q} {output.figure:q} && cp {input.picture:q} {output.picture:q}) > {log:q} 2>&1"


rule show_page:
    """Job: copy a page of the selected run to results/"""
    input:
        unpack(runs.figures.to_show),
    output:
        "results/{page}",
    log:
        "results/logs/show_{page}.log",
    wildcard_constraints:
        page=alternatives(runs.figures.shown_pages),
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    shell:
        "cp {input:q} {output:q} > {log:q} 2>&1"


rule supplementary:
    """Target: figures that the paper does not have"""
    input:
        runs.figures.of_target("supplementary"),
