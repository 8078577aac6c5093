"""Write what follows from the code: schemas, the OpenAPI document, tables and reference pages.

``--check`` writes nothing and exits with 1, naming what is stale.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import nousd
from nousd.bridge.openapi.document import make_document
from nousd.bridge.routes import ROWS

from .http_tables import HTTP_TABLES
from .markdown import PROTOCOL, with_blocks
from .normalized_tables import NORMALIZED_TABLES
from .reference import reference_pages
from .schemas import SCHEMAS
from .v1_tables import ERRORS_TABLES, LIMITS_TABLES, V1_TABLES

DOCUMENTS = {
    PROTOCOL / "v1.md": V1_TABLES,
    PROTOCOL / "semantics" / "errors.md": ERRORS_TABLES,
    PROTOCOL / "semantics" / "limits.md": LIMITS_TABLES,
    PROTOCOL / "http.md": HTTP_TABLES,
    PROTOCOL / "normalized.md": NORMALIZED_TABLES,
}


def generate_files() -> dict[Path, str]:
    """Return the content that each generated file has to have."""
    files = {
        PROTOCOL / "schemas" / f"{name}.json": json.dumps(make(), indent=2, ensure_ascii=False)
        + "\n"
        for name, make in SCHEMAS.items()
    }
    http = make_document(ROWS, version=nousd.__version__)
    files[PROTOCOL / "http.openapi.json"] = json.dumps(http, indent=2, ensure_ascii=False) + "\n"
    for path, tables in DOCUMENTS.items():
        files[path] = with_blocks(path.read_text(encoding="utf-8"), tables, path.name)
    return files | reference_pages()


def is_stale(path: Path, wanted: str) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") != wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if stale")
    arguments = parser.parse_args()
    stale = [(path, text) for path, text in generate_files().items() if is_stale(path, text)]
    for path, text in stale:
        print(f"{'stale' if arguments.check else 'written'}: {path.relative_to(PROTOCOL.parent)}")
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
