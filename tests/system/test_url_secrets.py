"""Secrets of URLs are hidden in messages, and are no part of what identifies a recording."""

from __future__ import annotations

import pytest

from fastscribe._system.url_secrets import hide_secrets, unsigned
from fastscribe.audio.failures import input_failure
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.results.journal_ledger import key_of
from fastscribe.types import Source


@pytest.mark.parametrize(("text", "shown"), [
    ("https://me:pass@word@host/a.wav: read failed", "https://me:***@host/a.wav: read failed"),
    ("https://token@host/a.wav", "https://***@host/a.wav"),
    ("https://host/a@b.wav: gone", "https://host/a@b.wav: gone"),
    ("https://h/a?X-Amz-Date=1&X-Amz-Signature=0f1e: gone", "https://h/a?X-Amz-Date=1&X-Amz-Signature=***: gone"),
    ("https://h/a?X-Amz-Credential=AK%2F1&x=1", "https://h/a?X-Amz-Credential=***&x=1"),
    ("https://h/a?sv=2024&sig=ab%3D&se=1", "https://h/a?sv=2024&sig=***&se=1"),
    ("https://h/a?access_token=q (and api_key=no URL)", "https://h/a?access_token=*** (and api_key=no URL)"),
    ("first https://a:b@h/x, then https://c:d@h/y", "first https://a:***@h/x, then https://c:***@h/y"),
    ("me@host: a?token=b", "me@host: a?token=b"), ("s3://bucket/a.wav", "s3://bucket/a.wav"),
    ("https://h/a?monkey=1&keyboard=2", "https://h/a?monkey=1&keyboard=2"),
    ("https://me:pa/ss?w#d@host/a", "https://me:***@host/a"), ("https://me:80@host/a", "https://me:***@host/a"),
    ("https://h:80/a@b.wav", "https://h:80/a@b.wav"), ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
    ("http://h:80", "http://h:80"), ("s3://key:secret@bucket/a", "s3://key:***@bucket/a"),
    ("abfs://box@account.dfs.core.windows.net/a", "abfs://box@account.dfs.core.windows.net/a"),
    ("https://user:p@ss/w@host/a.wav", "https://user:***@host/a.wav"), ("https://u:123/45@host", "https://u:***@host"),
    ("https://host/@user/a@b.wav", "https://host/@user/a@b.wav"), ("http://h:9000/a@b", "http://h:9000/a@b"),
    ("https://tok@en@host/a", "https://***@host/a"), ("https://a:b@h/x,s3://c:d@h/y", "https://a:***@h/x,s3://c:***@h/y"),
    ("https://a:b@h/x?mail=c@d", "https://a:***@h/x?mail=c@d"), ("http://h:80 is a@b", "http://h:80 is a@b"),
    ("https://h/a#access_token=q&x=1", "https://h/a#access_token=***&x=1"),
    ("https://h/a?jwt=e.y.J&pwd=w&db_password=x&pwdx=1", "https://h/a?jwt=***&pwd=***&db_password=***&pwdx=1"),
    ("run 'https://h/a?sig=0f' \"https://h/b?sig=0f\".", "run 'https://h/a?sig=***' \"https://h/b?sig=***\"."),
])  # fmt: skip
def test_hide_secrets(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


@pytest.mark.parametrize(("url", "stable"), [
    ("https://h/a.wav?X-Amz-Date=1&X-Amz-Expires=9&part=2&X-Amz-Signature=f", "https://h/a.wav?part=2"),
    ("https://h/a.wav?sv=1&se=2&sp=r&sig=f", "https://h/a.wav"),
    ("https://h/a.wav?Expires=1&Signature=f&Key-Pair-Id=K", "https://h/a.wav"),
    ("https://me:word@h:8080/a.wav?sp=1&expires=2", "https://h:8080/a.wav?sp=1&expires=2"),
    ("https://h/a.wav?sr=8000&Sig=f", "https://h/a.wav?sr=8000&Sig=f"), ("https://h/a?sig=rec1", "https://h/a?sig=rec1"),
    ("https://h/a?Signature=rec1&policy=p", "https://h/a?Signature=rec1&policy=p"),
    ("https://h/a?X-Amz-Signature=rec1&expires=2", "https://h/a?X-Amz-Signature=rec1&expires=2"),
    ("https://h/a?Policy=p&Signature=f&Key-Pair-Id=K&id=1", "https://h/a?id=1"),
    ("https://h/a?AWSAccessKeyId=A&Expires=1&Signature=f&sp=1", "https://h/a?sp=1"),
    ("https://h/a?X-Goog-Date=1&X-Goog-Signature=f", "https://h/a"), ("https://h/a?b=1&expires=1&sig=f", "https://h/a?b=1"),
    ("https://h/a?sv=1&xsig=f", "https://h/a?sv=1&xsig=f"),
    ("s3://bucket/a.wav?sig=f", "s3://bucket/a.wav?sig=f"), ("http://[x/a?sig=f", "http://[x/a?sig=f"),
])  # fmt: skip
def test_unsigned(url: str, stable: str) -> None:
    assert unsigned(url) == stable


def test_a_url_that_is_signed_again_is_the_same_input() -> None:
    urls = [f"https://host/{name}.wav?X-Amz-Date={day}&X-Amz-Signature={day}" for name in "ab" for day in (1, 2)]
    for inputs in (
        [Source(url, RemoteFile(url), "a") for url in urls],
        [input_failure(url, "is gone") for url in urls],
    ):
        keys = [key_of(one) for one in inputs]
        assert keys[0] == keys[1] != keys[2] == keys[3]
