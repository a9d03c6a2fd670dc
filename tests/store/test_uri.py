"""A store's URI never carries what opens it, and what refuses one does not repeat it."""

from __future__ import annotations

import re

import pytest

from rloop_core.errors import ConfigError
from rloop_core.store import Store
from rloop_core.store.uri import CREDENTIALS
from tests.conftest import small_config

WITH = [
    "s3://AKIAFAKE:hunter2@bucket/prefix", "s3://AKIAFAKE:hun/ter2@bucket/prefix", "s3://hunter2@bucket/prefix",
    "s3a://id:hunter2@bucket", "ftp://user:hunter2@host/path", "s3://bucket/prefix?key=a&secret=hunter2",
    "s3://bucket/prefix?aws_secret_access_key=hunter2", "https://host/x?X-Amz-Signature=hunter2",
    "abfs://container:hunter2@account.dfs.core.windows.net/x", "https://account.blob.core.windows.net/c?sig=hunter2",
]  # fmt: skip
WITHOUT = [
    "s3://bucket/prefix", "s3://bucket/run:a@b", "some/folder@home:x", "/tmp/user:word@x?secret=1",
    "file:///tmp/a@b?key=1", "memory://x?token=1", "abfs://container@account.dfs.core.windows.net/x",
    "s3://bucket/prefix?versionId=3",
]  # fmt: skip


@pytest.mark.parametrize("uri", WITH)
def test_credentials_are_refused_everywhere_and_not_repeated(uri):
    with pytest.raises(ConfigError) as caught:
        Store(uri)
    with pytest.raises(ConfigError) as from_config:
        small_config(placement={"store": uri})
    for error in (caught.value, from_config.value):
        assert "ter2" not in str(error)
        assert "AKIA" not in str(error)
        assert "AWS_SECRET_ACCESS_KEY" in str(error.fix)
        assert error.field == "placement.store"
    assert re.match(CREDENTIALS, uri)


@pytest.mark.parametrize("uri", WITHOUT)
def test_uris_without_credentials_are_accepted(uri):
    small_config(placement={"store": uri})
    assert not re.match(CREDENTIALS, uri)


@pytest.mark.parametrize(
    ("uri", "fix"),
    [
        ("s3://bucket//prefix", "write s3://bucket/prefix"),
        ("s3://bucket/a//b/", "write s3://bucket/a/b"),
        ("s3://bucket/./a", "write s3://bucket/a"),
        ("s3://bucket/a/..", "write s3://bucket/a"),
        ("s3:///prefix", "write s3://prefix"),
        ("gs://bucket//prefix", "write gs://bucket/prefix"),
        ("s3://bucket/prefix?versionId=3", "not a version"),
        ("s3a://bucket?versionId=3", "not a version"),
    ],
)
def test_a_uri_that_could_be_read_in_two_ways_is_refused(uri, fix):
    with pytest.raises(ConfigError) as caught:
        Store(uri)
    assert caught.value.field == "placement.store" and fix in str(caught.value.fix)


@pytest.mark.parametrize("endpoint", ["http://id:hunter2@host:9000", "id:hunter2@host", "http://host/?token=hunter2"])
@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_with_credentials_is_refused_and_not_repeated(monkeypatch, variable, endpoint):
    """Libraries repeat an endpoint that they cannot use."""
    monkeypatch.setenv(variable, endpoint)
    Store("memory://x")
    with pytest.raises(ConfigError, match=variable) as caught:
        Store("s3://bucket/prefix")
    assert "ter2" not in str(caught.value)
