#!/usr/bin/env python3
"""Fails if a link of a Markdown file of the project leads to a file or a heading that does not exist.

  links.py [FOLDER]     default: the project's root; web addresses are not tried
"""
import os, re, shutil, subprocess, sys

root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
listed = shutil.which("git") and subprocess.run(
    ["git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.md"], capture_output=True, text=True)
names = listed.stdout.split() if listed and listed.returncode == 0 else [  # sources without git
    os.path.relpath(os.path.join(folder, f), root) for folder, _, files in os.walk(root) for f in files
    if f.endswith(".md") and not os.path.relpath(folder, root).startswith("build")]


def anchors(path):  # as GitHub makes them from headings
    with open(path, encoding="utf-8") as f:
        headings = re.findall(r"(?m)^#+ (.*)$", f.read())
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


broken = []
for name in names:
    path = os.path.join(root, name)
    with open(path, encoding="utf-8") as f:
        links = re.findall(r"\]\((?!https?:)([^)\s]+)\)", f.read())
    for link in links:
        file, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if not os.path.exists(target):
            broken.append(f"{name}: {link}: there is no such file")
        elif anchor and target.endswith(".md") and anchor not in anchors(target):
            broken.append(f"{name}: {link}: there is no such heading")
print("\n".join(broken) or f"links: {len(names)} files ok")
sys.exit(bool(broken) or not names)
