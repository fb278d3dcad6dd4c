# SPDX-License-Identifier: Apache-2.0
# Copyright The Outrigger Authors
#
# Hooks of mkdocs. The README is the first page of the site, and each code of the analysis has a
# page. Links to files outside of docs lead to the repository, where those files are.
import os
import posixpath
import re
import subprocess

from mkdocs.structure.files import File

CODES = "reference/analysis.md"
CODE = re.compile(r"^\| `((?:IST|OUT)\d+)` \|", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files, config):
    root = os.path.dirname(config.config_file_path)
    with open(os.path.join(root, "README.md"), encoding="utf-8") as readme:
        files.append(File.generated(config, "index.md", content=readme.read()))
    with open(os.path.join(root, "docs", CODES), encoding="utf-8") as table:
        codes = CODE.findall(table.read())
    for code in codes:
        page = subprocess.run([os.path.join(root, "bin", "outrigger"), "explain", code], check=True, capture_output=True, encoding="utf-8").stdout
        files.append(File.generated(config, f"reference/codes/{code}.md", content=page))
    return files


def on_page_markdown(markdown, page, config, files):
    root = os.path.dirname(config.config_file_path)
    if page.file.src_uri == CODES:
        markdown = CODE.sub(r"| [`\1`](codes/\1.md) |", markdown)
    source = "README.md" if page.file.src_uri == "index.md" else "docs/" + page.file.src_uri
    here = posixpath.dirname("docs/" + page.file.src_uri)

    def target(match):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if path == "README.md":
            path = "docs/index.md"
        if path.startswith("docs/"):
            return f"]({posixpath.relpath(path, here)}{match[2] or ''})"
        kind = "tree" if os.path.isdir(os.path.join(root, path)) else "blob"
        return f"]({config.repo_url}/{kind}/main/{path}{match[2] or ''})"

    return LINK.sub(target, markdown)


def on_post_page(output, page, config):
    # With this attribute, the theme's script asks GitHub about the repository.
    return output.replace(' data-md-component="source"', "")
