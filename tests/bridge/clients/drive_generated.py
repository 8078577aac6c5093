"""Drives the package that openapi-python-client made of our document, in the folder PACKAGE:
``drive_generated PACKAGE BASE TOKEN _``.

Each operation is a module of it, named by the ``operationId``. A status that the document does not have
is an error.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx

from tests.bridge.clients.talk import CALL_SECONDS, tell, until


class Driver:
    """Calls operations of the client by their ids."""

    def __init__(self, client: Any, operations: dict[str, ModuleType], models: ModuleType) -> None:
        self.client = client
        self.operations = operations
        self.models = models

    def send(self, operation: str, *args: Any, **more: Any) -> Any:
        """Return the reply, with the status and the parsed body."""
        return self.operations[operation].sync_detailed(*args, client=self.client, **more)

    def call(self, label: str, operation: str, *args: Any, **more: Any) -> Any:
        """Call an operation, print its outcome, and return its parsed body."""
        reply = self.send(operation, *args, **more)
        if reply.status_code >= 400:
            refused = {"status": reply.status_code, "body": plain(reply.parsed)}
            tell(label, operation, refused=refused)
        else:
            tell(label, operation, result=plain(reply.parsed))
        return reply.parsed

    def drive(self) -> None:
        self.call("health", "get_global_health")
        self.call("catalog", "get_provider")
        self.sessions()
        self.runs()
        self.call("delete", "delete_session_id", self.session)
        self.call("missing session", "get_session_id", self.session)

    def sessions(self) -> None:
        models = self.models
        self.call("create without a body", "post_session")
        wanted = models.CreateSession(
            title="First",
            source_kind="generated",
            top_p=0.5,
            model=models.ModelBody(provider_id="mock"),
            permission=[models.RuleBody(permission="bash", action="deny")],
        )
        self.session = self.call("create", "post_session", body=wanted).id
        renamed = models.PatchSession(title="Renamed")
        self.call("update", "patch_session_id", self.session, body=renamed)
        self.call("list", "get_session", source="generated")
        self.call("append", "post_session_id_message", self.session, body=self.says("Noted."))

    def runs(self) -> None:
        wanted = self.models.PostSessionIdPromptAsyncReturn.RUN
        started = self.prompt("prompt_async", "[[text Hello.]]", return_=wanted)
        self.until_idle()
        self.call("run_events", "get_run_run_id_events", started.run_id)
        self.call("messages", "get_session_id_message", self.session)
        self.prompt("prompt_async without a reply", "[[hang]]")
        self.call("active_run", "get_session_id_run", self.session)
        self.prompt("conflict", "[[text Never.]]")
        self.call("cancel", "post_session_id_cancel", self.session)
        self.until_idle()
        self.call("idle", "get_session_id_run", self.session)
        said = self.says("[[text Bye.]]")
        self.call("prompt_sync", "post_session_id_prompt_sync", self.session, body=said)
        self.call("get", "get_session_id", self.session)

    def prompt(self, label: str, text: str, **more: Any) -> Any:
        operation = "post_session_id_prompt_async"
        return self.call(label, operation, self.session, body=self.says(text), **more)

    def says(self, text: str) -> Any:
        part = self.models.PartBody(type_=self.models.PartBodyType.TEXT, text=text)
        return self.models.SendMessage(parts=[part])

    def until_idle(self) -> None:
        until(lambda: self.send("get_session_id_run", self.session).parsed.active is None)


def plain(parsed: Any) -> Any:
    """Return a parsed body as plain JSON data."""
    if isinstance(parsed, list):
        return [plain(item) for item in parsed]
    return parsed.to_dict() if hasattr(parsed, "to_dict") else parsed


def found_operations(package: str) -> dict[str, ModuleType]:
    """Return the modules of all operations of a package by their names."""
    api = importlib.import_module(f"{package}.api")
    inner = pkgutil.walk_packages(api.__path__, f"{api.__name__}.")
    names = [module.name for module in inner if not module.ispkg]
    return {name.rpartition(".")[2]: importlib.import_module(name) for name in names}


def main(folder: str, base: str, token: str, _workdir: str) -> None:
    sys.path.insert(0, str(Path(folder).parent))
    package = importlib.import_module(Path(folder).name)
    models = importlib.import_module(f"{package.__name__}.models")
    operations = found_operations(package.__name__)
    for operation in operations:
        tell("known", operation)

    def client(token: str) -> Any:
        return package.AuthenticatedClient(
            base, token, raise_on_unexpected_status=True, timeout=httpx.Timeout(CALL_SECONDS)
        )

    with client(token) as known:
        Driver(known, operations, models).drive()
    with client("wrong") as stranger:
        Driver(stranger, operations, models).call("wrong token", "get_session")


main(*sys.argv[1:])
