"""`python -m twoscale`: what there is to call, from the docstrings of the library, the Snakefile and the scripts."""

from pathlib import Path

import twoscale

if __name__ == "__main__":
    project = Path(__file__).parents[2]
    print(twoscale.__doc__)
    if (project / "Snakefile").is_file():  # a checkout
        first = {path: path.read_text(encoding="utf-8").split('"""')[1] for path in project.glob("scripts/*.py")}
        print((project / "Snakefile").read_text(encoding="utf-8").split('"""')[1])
        for script, text in sorted(first.items()):
            if not text.startswith("Rule"):  # those are for jobs
                print(f"scripts/{script.name}: {text.partition(chr(10))[0]}")
