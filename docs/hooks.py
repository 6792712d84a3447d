"""MkDocs hooks of mkdocs.yml, so that the same Markdown works on GitHub and on the site.

README.md is the start page. What a page links to outside docs/ becomes a page of the site: Markdown
as it is, a source file as a listing, a folder as a list of its files. A notebook in docs/ becomes a
page with its stored outputs.
"""

import json
import os.path
import re
from pathlib import Path

from docs.reference import config_page, tables_page
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?!https?://)([^)\s#]+)")  # the path of a link or picture
FENCES = {".py": "python", ".yaml": "yaml", ".cff": "yaml", ".json": "json"}
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"
GENERATED = {}  # page of the site that is no Markdown file of docs/ -> its file or folder


def on_files(files, config):
    """Add the pages that are no Markdown files of docs/."""
    present = {file.src_uri for file in files}
    waiting = [
        ROOT / "README.md",
        *DOCS.glob("*.ipynb"),
        *(Path(f.abs_src_path) for f in files.documentation_pages()),
    ]
    for place, page in (("config.md", config_page), ("tables.md", tables_page)):
        if place not in present and place in str(
            config["nav"]
        ):  # `make generated` has not written it
            text = page()
            files.append(File.generated(config, place, content=text))
            waiting += linked(text, DOCS)
    while waiting:
        path = waiting.pop()
        place = site_path(path)
        if place not in present:
            present.add(place)
            GENERATED[place] = path
            files.append(File.generated(config, place, content=content(path)))
        if path.suffix == ".md":
            targets = linked(path.read_text(encoding="utf-8"), path.parent)
            waiting += [target for target in targets if site_path(target) not in present]
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead the links of a page to where their targets are on the site."""
    source = GENERATED.get(page.file.src_uri, DOCS / page.file.src_uri)
    here = os.path.dirname(page.file.src_uri)

    def moved(link):
        target = (source.parent / link[0]).resolve()
        return os.path.relpath(site_path(target), here) if target.exists() else link[0]

    return markdown if source.is_dir() else LINK.sub(moved, markdown)


def site_path(path):
    """Where a file or folder of the project is on the site."""
    relative = path.relative_to(ROOT)
    if path.is_dir():
        readme = path / "README.md"
        return site_path(readme) if readme.is_file() else f"files/{relative}/index.md"
    if path.suffix == ".ipynb":
        return f"{path.stem}.md"
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path.suffix == ".md":
        return "index.md" if path == ROOT / "README.md" else path.name.lower()
    return f"files/{relative}.md"


def linked(text, folder):
    """The files and folders that a page in a folder links to."""
    targets = ((folder / link).resolve() for link in LINK.findall(text))
    return [target for target in targets if target.exists()]


def content(path):
    """The Markdown of a generated page."""
    title = f"# `{path.relative_to(ROOT)}`\n\n"
    if path.is_dir():
        return UNSEARCHED + title + "\n".join(entries(path))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return "\n\n".join(part for cell in json.loads(text)["cells"] for part in cell_parts(cell))
    return (
        text
        if path.suffix == ".md"
        else UNSEARCHED + title + fenced(text, FENCES.get(path.suffix, ""))
    )


def entries(folder):
    """A list of the files in a folder; those in docs/ are on the site."""
    for path in sorted(
        each for each in folder.rglob("*") if each.is_file() and "__pycache__" not in each.parts
    ):
        name, here = f"`{path.relative_to(folder)}`", os.path.dirname(site_path(folder))
        on_site = path.is_relative_to(DOCS)
        yield f"- [{name}]({os.path.relpath(site_path(path), here)})" if on_site else f"- {name}"


def cell_parts(cell):
    """Markdown of a cell of a notebook and of its outputs."""
    source = "".join(cell["source"])
    yield source if cell["cell_type"] == "markdown" else fenced(source, "python")
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "image/png" in data:
            picture = "".join(data["image/png"]).replace("\n", "")
            yield f'<img alt="Output of the cell above" src="data:image/png;base64,{picture}">'
        elif text := "".join(output.get("text", data.get("text/plain", ""))):
            yield fenced(text, "text")


def fenced(text, language):
    return f"````{language}\n{text.rstrip()}\n````"
