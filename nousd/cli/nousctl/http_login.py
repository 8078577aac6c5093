"""``nousctl http login``: prints a one-time link that logs a browser in.

Any user who can read the token can create a link. Nothing is sent to the server: the link is a file in
the state folder, which the server removes when the login page submits the link's secret.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from nousd.cli.arguments import Argument, option
from nousd.cli.client_options import Options
from nousd.cli.nousctl.rows import Watch
from nousd.cli.output import DONE
from nousd.errors import ConfigError

_ADDRESS: Final = re.compile(r"(\[[^\]]+\]|[^\[\]:/\s]+):0*[1-9]\d*")
_PAGE: Final = re.compile(r"https?://[^\s#]+")
_ANY_ADDRESS: Final = ("0.0.0.0", "[::]")  # noqa: S104  nothing is bound to it here


def _login(_options: Options, values: dict[str, Any]) -> int:
    from nousd.config.resolve import resolve
    from nousd.runtime_paths.locations import http_token_file
    from nousd.runtime_paths.tickets import LINK_SECONDS, hash_token, login_links
    from nousd.runtime_paths.tokens import existing_http_token

    flags: dict[str, Any] = {key: values[key] for key in ("state_dir", "http") if key in values}
    settings = resolve(flags, os.environ, values.get("config"), asks_models=False).settings
    page = values.get("page") or _login_page(settings.http)
    if not _PAGE.fullmatch(page):
        raise ConfigError(f"--page: {page!r} is no http or https address without a fragment (#)")
    file = http_token_file(settings.state_dir)
    token = existing_http_token(file)
    if token is None:
        raise ConfigError(f"http: there is no token {file} yet: nousd serve --http makes one")
    secret, _ = login_links(settings.state_dir).issue(hash_token(token))
    print(f"{page}#{secret}")
    minutes = int(LINK_SECONDS / 60)
    print(f"Open it in a browser: it works once, within {minutes} minutes.", file=sys.stderr)
    return DONE


def _login_page(http: str | None) -> str:
    """Return the URL of the login page of the server at the address ``http``."""
    address = _ADDRESS.fullmatch(http or "")
    if address is None or address[1] in _ANY_ADDRESS:
        raise ConfigError(
            "http: say where a browser finds the server: --http 127.0.0.1:PORT, or the whole address"
            " of the login page, as in --page https://NAME/auth/login"
        )
    return f"http://{http}/auth/login"


LOGGING_IN: Final[dict[str, Watch]] = {
    "http": Watch(
        "Print a one-time link that logs a browser in (http login).",
        (
            Argument(
                "action",
                Annotated[Literal["login"], typer.Argument(metavar="login", help="Action.")],
                ...,
            ),
            option("page", "--page", "Page that gets the link. [default: the server's own]"),
            option("http", "--http", "Address of the server. [default: from the settings]"),
            option("state_dir", "--state-dir", "The server's state directory."),
            Argument(
                "config",
                Annotated[
                    Path | None,
                    typer.Option("--config", metavar="FILE", help="Settings file to read."),
                ],
            ),
        ),
        _login,
    ),
}
