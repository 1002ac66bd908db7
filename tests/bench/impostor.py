"""A program that the benchmark takes for an interpreter, and that answers as a test likes."""

import sys
import textwrap


def impostor(folder, *lines):
    """A program that the runner takes for an interpreter, and that answers with these lines."""
    path = folder / "python"
    body = textwrap.dedent("\n".join(lines))
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys, time\n"
        "replies = os.fdopen(int(sys.argv[3]), 'w')\n"
        "def reply(**what): print(json.dumps(what), file=replies, flush=True)\n"
        "for line in sys.stdin:\n" + textwrap.indent(body, "    ") + "\n"
    )
    path.chmod(0o755)
    return str(path)
