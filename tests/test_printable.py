from __future__ import annotations

import base64
from urllib.parse import quote

import pytest

from rloop_core.printable import MASK, printable_line, without_secrets

KEY, WORD = "wJalr/abc+def=", "Correct-Horse"
ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": KEY,
    "PREFECT_API_AUTH_STRING": f"admin:{WORD}",
    "SOME_DATABASE_CONNECTION_URL": "postgresql://somebody:hunter2222@db/prefect",
    "TOKENIZERS_PARALLELISM": "false",
    "MY_TOKEN_FILE": "/run/token",
    "HF_TOKEN": "ab",
}


@pytest.mark.parametrize(
    "secret",
    [KEY, quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode(), WORD, f"admin:{WORD}", "hunter2222",
     base64.b64encode(f"admin:{WORD}".encode()).decode()],
)  # fmt: skip
def test_what_the_environment_keeps_secret_is_masked_in_every_form(secret: str) -> None:
    assert without_secrets(f"before {secret} after", ENVIRONMENT) == f"before {MASK} after"


def test_places_switches_and_what_is_too_short_to_be_secret_stay() -> None:
    text = "false /run/token drab AWS_SECRET_ACCESS_KEY"
    assert without_secrets(text, ENVIRONMENT) == text


def test_passwords_in_uris_and_signatures_in_queries_are_masked_whosever_they_are() -> None:
    told = without_secrets("GET https://u:pw@host/x?X-Amz-Credential=AK%2F1&X-Amz-Signature=abc&n=1", {})
    assert told == f"GET https://{MASK}@host/x?X-Amz-Credential={MASK}&X-Amz-Signature={MASK}&n=1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c", "abc"),
        ("50%\r\x1b[2K\x1b[1Adone\x08\x07", "50%done"),
        ("two\n  lines\tand a tab", "two lines and a tab"),
        ("evil\u202egnp.exe\u200b\u2028x\x9b31m", "evilgnp.exex31m"),
        ("\ud800lone", "lone"),
        ("Gr\u00f6\u00dfe \u03b8 \u2264 1 \u4e2d", "Gr\u00f6\u00dfe \u03b8 \u2264 1 \u4e2d"),
    ],
)
def test_a_line_holds_nothing_that_a_terminal_would_act_on(text: str, shown: str) -> None:
    assert printable_line(text) == shown


def test_a_line_is_bounded() -> None:
    assert len(printable_line("x" * 10**6)) == 500 and printable_line("x" * 501).endswith("...")
