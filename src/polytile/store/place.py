"""Where a store is: a file of this machine, or a schema in the database of a PostgreSQL server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from polytile.errors import StoreError

FILE_NAME = "store.sqlite3"
SCHEMES = ("postgresql://", "postgres://")

_PASSWORD = re.compile(r"(?P<before>://[^:@/?#]*):[^@/?#]*@")
_PASSWORD_PARAMETER = re.compile(r"(?P<name>[?&](?:ssl)?password=)[^&]*")


@dataclass(frozen=True)
class Server:
    """A PostgreSQL database, by the URL that libpq reads: postgresql://user@host:5432/database?sslmode=require."""

    url: str

    def __str__(self) -> str:
        """The URL without its password: what messages show."""
        return _PASSWORD_PARAMETER.sub(r"\g<name>***", _PASSWORD.sub(r"\g<before>:***@", self.url))

    def __repr__(self) -> str:
        return f"Server({str(self)!r})"


Place = Path | Server


def place_of(named: str | Path) -> Place:
    """The store that a path or a URL means; a directory stands for the store file in it.

    Raises StoreError for the URL of something else than PostgreSQL.
    """
    text = str(named)
    if isinstance(named, str) and "://" in text:
        url = re.sub(r"^(postgres(?:ql)?)\+psycopg://", r"\1://", text)
        if not url.startswith(SCHEMES):
            scheme = text.partition("://")[0]
            raise StoreError(
                f"a store is a file or a PostgreSQL database, and {scheme}:// is neither; "
                "write postgresql://user@host/database, or a path."
            )
        return Server(url)
    path = Path(named).expanduser()
    return path / FILE_NAME if path.is_dir() else path
