"""One S3 service for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.object_service import ObjectService, object_service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("s3") / "root") as found:
        yield found


@pytest.fixture(autouse=True)
def behaving(service: ObjectService) -> Iterator[None]:
    """Whatever a test did to the way to the service is undone."""
    yield
    service.proxy.delay_s, service.proxy.refusing = 0.0, False
