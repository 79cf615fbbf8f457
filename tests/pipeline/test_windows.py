"""What a run sets on its inputs."""

from __future__ import annotations

from fastscribe.config import Options
from fastscribe.pipeline.windows import expected_sources
from fastscribe.types import Source


def test_what_a_row_names_goes_before_the_options() -> None:
    given = [Source("a", "a", "a"), Source("b", "b", "b", track=1, channel=0)]
    found = list(expected_sources(given, None, Options(track=2, channel=1)))
    assert [(one.track, one.channel) for one in found if isinstance(one, Source)] == [(2, 1), (1, 0)]
    found = list(expected_sources(given, None, Options()))
    assert [(one.track, one.channel) for one in found if isinstance(one, Source)] == [(None, None), (1, 0)]
