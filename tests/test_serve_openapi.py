"""The description is true: whatever is sent, right or wrong, the answer is one it describes, and
never a 5xx. ARMD_EXAMPLES=300 looks longer than `make test` does."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from serving import running

EXAMPLES = int(os.environ.get("ARMD_EXAMPLES", "12"))


@pytest.fixture(scope="module")
def described():
    with running(timeout=20.0) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        server.at_rest()
        assert server.service.engine.metrics.failed == 0


schema = schemathesis.pytest.from_fixture("described")


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_described(case) -> None:
    case.call_and_validate(
        checks=[
            not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_schema_conformance,
            checks.response_headers_conformance,
            checks.negative_data_rejection,
            checks.unsupported_method,
        ],
        timeout=60,
    )
