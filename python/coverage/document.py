"""Sections of a page in Markdown that scripts write."""


def replace_section(path, text):
    """Puts `text`, which begins with a heading, in the place of the section with this heading, or behind all others."""
    heading = text.splitlines()[0]
    lines = path.read_text().splitlines() if path.exists() else []
    sections, current = [], []
    for line in lines:
        if line.startswith(("# ", "## ")):
            sections.append(current)
            current = []
        current.append(line)
    sections.append(current)
    own = text.strip().splitlines() + [""]
    found = [section for section in sections if section[:1] == [heading]]
    if found:
        sections = [own if section is found[0] else section for section in sections]
    else:
        sections.append(own)
    blocks = ["\n".join(section).strip() for section in sections]
    path.write_text("\n\n".join(block for block in blocks if block) + "\n")
