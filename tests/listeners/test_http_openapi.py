"""The OpenAPI document: it says all that the API does, and nothing else."""

import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import httpx
import jsonschema_rs
import pytest

from sulina.listeners.http import HttpApp
from sulina.listeners.http_limits import DEFAULT_HTTP_LIMITS
from sulina.listeners.http_openapi import document, undescribed
from sulina.listeners.http_openapi_paths import BATCH, PARTITION_BATCH, PARTITION_RECORDS, RECORDS
from sulina.listeners.http_openapi_problems import ERRORS
from sulina.listeners.http_problem import HTTP_CODES, STATUSES

API = document(DEFAULT_HTTP_LIMITS, "1.2.3")
NOT_IN_IT = re.compile(r"/|/docs(/.*)?|/openapi\.json")
VERBS = {"get", "put", "post", "delete"}


def operations() -> Iterator[tuple[str, str, Any]]:
    for path, verbs in API["paths"].items():
        for verb, operation in verbs.items():
            yield path, verb, operation


def follow(reference: str) -> Any:
    found = API
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"]
        for child in part.values():
            yield from references(child)
    elif isinstance(part, list):
        for child in part:
            yield from references(child)


def validator(schema: Any) -> Any:
    return jsonschema_rs.validator_for({**schema, "components": API["components"]})


def test_every_path_and_method_that_is_served_is_documented(app: HttpApp) -> None:
    served = {(path, method.lower()) for path, methods in app.methods.items() for method in methods}
    served |= {(RECORDS, "post"), (PARTITION_RECORDS, "post"), (PARTITION_RECORDS, "get")}
    served |= {(BATCH, "post"), (PARTITION_BATCH, "post")}
    assert {(path, verb) for path, verb in served if not NOT_IN_IT.fullmatch(path)} == {
        (path, verb) for path, verb, _ in operations()
    }


def test_references_lead_somewhere() -> None:
    for reference in references(API):
        assert follow(reference)


def test_every_operation_can_be_learnt_from_it() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in API["tags"]}
    for path, verb, operation in operations():
        assert verb in VERBS
        assert set(operation["tags"]) <= tags
        assert operation["summary"]
        assert len(operation["description"]) > 8
        parameters = [follow(one["$ref"]) if "$ref" in one else one for one in operation["parameters"]]
        assert all(parameter["description"] for parameter in parameters)
        in_path = {parameter["name"] for parameter in parameters if parameter["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))


def test_every_field_is_described() -> None:
    assert undescribed(API["components"]["schemas"]) == []


def test_every_status_that_an_error_can_have_is_documented() -> None:
    everywhere = {int(status) for status in STATUSES.values()} | {int(status) for status, _ in HTTP_CODES.values()}
    assert everywhere - {HTTPStatus.METHOD_NOT_ALLOWED} <= set(ERRORS)  # there is no operation to document a 405 at
    for _, _, operation in operations():
        assert {"500", "400"} <= set(operation["responses"])


def test_examples_fit_their_schemas() -> None:
    seen = 0
    for _, _, operation in operations():
        contents = list(operation.get("requestBody", {}).get("content", {}).values())
        for response in operation["responses"].values():
            whole = follow(response["$ref"]) if "$ref" in response else response
            contents += whole.get("content", {}).values()
        for content in contents:
            examples = [one["value"] for one in content.get("examples", {}).values()]
            examples += [content["example"]] if "example" in content else []
            for example in examples:
                validator(content["schema"]).validate(example)
                seen += 1
    assert seen > 50


@pytest.mark.parametrize(
    ("record", "is_valid"),
    [
        ({"value": "a"}, True), ({"value": None, "key": "k"}, True), ({"value_b64": "YQ=="}, True), ({}, False),
        ({"value": "a", "value_b64": "YQ=="}, False), ({"value_b64": "%"}, False), ({"value": 1}, False),
        ({"value": "a", "key": "k", "key_b64": "aw=="}, False), ({"value": "a", "headers": {"a": ["b", None]}}, True),
    ],
)  # fmt: skip
def test_the_schema_of_records_says_what_the_server_takes(record: Any, is_valid: bool) -> None:
    assert validator({"$ref": "#/components/schemas/PublishIn"}).is_valid({"records": [record]}) == is_valid


async def test_it_is_served(http: httpx.AsyncClient) -> None:
    answer = await http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(json.dumps(API))
