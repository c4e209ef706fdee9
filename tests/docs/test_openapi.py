"""The committed OpenAPI documents: what the code says, complete, with examples of everything."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from space.core.account import Scope
from space.server.api import all_endpoints

ROOT = Path(__file__).resolve().parents[2]
FULL = json.loads((ROOT / "openapi.json").read_text())
PUBLISHED = json.loads((ROOT / "openapi-m1.json").read_text())
BODIES = ("POST", "PUT", "PATCH")


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method.upper(), operation


def all_keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from all_keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from all_keys(inner)


def test_the_committed_documents_are_what_the_code_says() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "scripts/openapi"), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_it_is_openapi_3_1_and_names_the_product_and_its_security() -> None:
    assert FULL["openapi"].startswith("3.1.")
    assert FULL["info"]["title"] == "SPACE"
    assert FULL["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_every_operation_has_a_summary_an_id_of_its_own_and_a_described_tag() -> None:
    described = {tag["name"] for tag in FULL["tags"]}
    ids = []
    for path, method, operation in operations(FULL):
        assert operation["summary"], (method, path)
        assert operation["tags"], (method, path)
        assert set(operation["tags"]) <= described, (method, path)
        ids.append(operation["operationId"])
    assert len(ids) == len(set(ids)) == len(all_endpoints())


def test_every_json_answer_and_every_error_has_a_named_example() -> None:
    for path, method, operation in operations(FULL):
        for status, response in operation["responses"].items():
            if "openapi.json" in path or "openapi-m1" in path or "not yet supported" in operation["tags"]:
                continue
            if path == "/v1/templates" and status == "202":
                continue  # not supported yet
            for media, content in response.get("content", {}).items():
                if media == "application/json":
                    assert content["examples"], (method, path, status)
        if "application/json" in operation.get("requestBody", {}).get("content", {}):
            assert operation["requestBody"]["content"]["application/json"]["examples"], (method, path)


def test_there_are_more_examples_than_were_published() -> None:
    count = 0
    for _, _, operation in operations(FULL):
        for part in (*operation["responses"].values(), operation.get("requestBody", {})):
            count += sum(len(content.get("examples", {})) for content in part.get("content", {}).values())
    assert count > 134


@pytest.mark.parametrize("name", ["openapi.json", "openapi-m1.json"])
def test_it_uses_no_extensions_and_every_reference_leads_somewhere(name: str) -> None:
    document = json.loads((ROOT / name).read_text())
    assert not [key for key in all_keys(document["components"]["schemas"]) if key.startswith("x-")]
    for _, _, operation in operations(document):
        assert not [key for key in operation if key.startswith("x-")]
    for reference in references(document):
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_operation_documents_the_failures_that_all_have() -> None:
    for path, method, operation in operations(FULL):
        is_public = operation["security"] == []
        statuses = set(operation["responses"])
        assert {"400", "429", "500", "503"} <= statuses, (method, path)
        assert is_public or "401" in statuses, (method, path)
        assert "{sandbox_id}" not in path or "404" in statuses, (method, path)


def test_every_scope_that_is_asked_for_exists() -> None:
    scopes = {
        scope
        for _, _, operation in operations(FULL)
        for one in operation["security"]
        for scope in one.get("bearer", ())
    }
    assert scopes <= set(Scope)


def test_every_post_but_logins_takes_an_idempotency_key() -> None:
    for path, method, operation in operations(FULL):
        names = {parameter["name"] for parameter in operation.get("parameters", ())}
        if method == "POST":
            assert ("Idempotency-Key" in names) == (path != "/auth/v1/sessions"), path


def test_the_published_part_holds_the_published_operations_only() -> None:
    published = {operation["operationId"] for _, _, operation in operations(PUBLISHED)}
    assert published == {
        "createSandbox", "listSandboxes", "getSandbox", "deleteSandbox", "pauseSandbox", "suspendSandbox",
        "wakeSandbox", "getOperation", "createCommand", "listProcesses", "getProcess", "killProcess",
        "signalProcess", "readSessionEvents", "createLoginSession", "getLoginSession", "deleteLoginSession",
    }  # fmt: skip
    for path, method, operation in operations(PUBLISHED):
        assert operation == FULL["paths"][path][method.lower()]
