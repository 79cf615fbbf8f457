"""ARPA files: what is read, and the line of what is wrong."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.context import arpa
from fastscribe.context.arpa import read_arpa
from fastscribe.errors import UsageError
from tests.context.arpa_files import SlowArpa, random_arpa

SMALL = """
made by hand
\\data\\
ngram 1=5
ngram 2=2

\\1-grams:
-99 <s> -0.5
-1.0\t</s>
-0.7\tthe\t-0.2
-1e0\tcat
-2 <unk>

\\2-grams:
-0.1\t<s> the
-0.3 the   cat

\\end\\
"""


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), longest=st.integers(1, 4), block=st.integers(40, 400), is_pruned=st.booleans())
def test_equals_slow_reading(seed, longest, block, is_pruned) -> None:
    """Also in blocks of a few lines."""
    text = random_arpa(seed, ["a", "bc", "é", "\u0085x"], longest, is_pruned=is_pruned)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arpa, "_BLOCK_BYTES", block)
        found = read_arpa(BytesIO(text.encode()), "x")
    slow = SlowArpa(text)
    read = {}
    for order in found.orders:
        for ids, logprob, backoff in zip(order.ids_AN, order.logprobs_A, order.backoffs_A, strict=True):
            read[tuple(found.units[i] for i in ids)] = (logprob, backoff)
    assert read.keys() == slow.probabilities.keys() and sum(len(order.logprobs_A) for order in found.orders) == len(
        read
    )
    for ngram, (logprob, backoff) in read.items():
        assert logprob == pytest.approx(np.log(10) * slow.probabilities[ngram], rel=1e-5)
        assert backoff == pytest.approx(np.log(10) * slow.backoffs[ngram], rel=1e-5)


def test_spaces_tabs_and_exponents() -> None:
    found = read_arpa(BytesIO(SMALL.encode()), "x")
    assert found.units == ("<s>", "</s>", "the", "cat", "<unk>")
    assert found.orders[1].ids_AN.tolist() == [[0, 2], [2, 3]]
    assert found.orders[0].backoffs_A.tolist() == pytest.approx([-0.5 * np.log(10), 0, -0.2 * np.log(10), 0, 0])


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("-0.7\tthe", "-o.7\tthe", r"line 10: not a number: '-o\.7'"),
        ("-0.7\tthe", "nan\tthe", "line 10: not a number: 'nan'"),
        ("-0.7\tthe", "0.7\tthe", "line 10: a log10 probability above 0"),
        ("-0.7\tthe\t-0.2", "-0.7\tthe\t-0.2 1", "line 10: not a number, 1 units and perhaps a number"),
        ("-1e0\tcat", "-1e0\tthe", "line 11: 'the' stands twice among the 1-grams"),
        ("the   cat", "the   dog", "line 16: 'dog' is not among the 1-grams"),
        ("-0.3 the   cat\n", "", "line 17: 1 2-grams before this line, where the header has 2"),
        ("\\2-grams:", "\\3-grams:", "line 14: .*2-grams: should be here"),
        ("\\end\\\n", "", "line 18: the file ends before"),
        ("ngram 2=2", "ngram 3=2", "line 5: not ngram 2=NUMBER"),
        ("\\data\\", "\\date\\", "no ARPA file: it has no line"),
        ("ngram 2=2", "ngram 2=999999999999", "n-grams of up to 2 units"),
        ("ngram 2=2", "ngram 2=" + "9" * 5000, "line 5: not ngram 2=NUMBER"),
        ("\\2-grams:", "\\" + "2" * 5000 + "-grams:", "line 14: .*2-grams: should be here"),
        ("-0.7\tthe\t-0.2", "-0.7\tthe\t1e38", "line 10: too large a number: '1e38'"),
    ],
)
def test_wrong_lines(old: str, new: str, problem: str) -> None:
    assert old in SMALL
    with pytest.raises(UsageError, match=f"^x: .*{problem}"):
        read_arpa(BytesIO(SMALL.replace(old, new).encode()), "x")


def test_a_section_is_not_read_far_beyond_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small compressed file can hold a section without an end."""
    monkeypatch.setattr(arpa, "_BLOCK_BYTES", 1 << 10)
    file = BytesIO(b"\\data\\\nngram 1=1\nngram 2=2\n\\1-grams:\n-1 a 0\n\\2-grams:\n" + b"-1 a a\n" * 100_000)
    with pytest.raises(UsageError, match=r"more 2-grams from here on than the 2 of the header$"):
        read_arpa(file, "x")
    assert file.tell() < 1 << 13


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(UsageError, match="line 11: not valid UTF-8"):
        read_arpa(BytesIO(SMALL.encode().replace(b"cat", b"c\xff")), "x")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=6), st.integers(0, len(SMALL)), st.integers(0, 20))
def test_random_damage(stain: bytes, at: int, lost: int) -> None:
    """Any content is a model or one line that names the file."""
    content, problem = SMALL.encode(), "x: "
    try:
        read_arpa(BytesIO(content[:at] + stain + content[at + lost :]), "x")
    except UsageError as error:
        problem = str(error)
    assert problem.startswith("x: ") and "\n" not in problem
