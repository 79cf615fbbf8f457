"""How a Python caller gets a run's results: in the order of the inputs, and with a progress bar."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from time import perf_counter

from fastscribe.audio.given import is_one
from fastscribe.pipeline.stats import Progress
from fastscribe.types import Failure, Transcript

Results = Generator[Transcript | Failure, None, None]


def in_order(results: Results) -> Results:
    """Yield results by index. If the run ends with an error, those that it holds back come first.

    Args:
        results: One for each index from 0 on, in any order.
    """
    held: dict[int, Transcript | Failure] = {}
    next_index = 0
    with closing(results):
        try:
            for result in results:
                held[result.index] = result
                while next_index in held:
                    yield held.pop(next_index)
                    next_index += 1
        except Exception:
            yield from (held[index] for index in sorted(held))
            raise


def with_bar(results: Results, progress: Callable[[], Progress], inputs: object) -> Results:
    """Yield the results and show a bar, in a terminal or in a notebook.

    Args:
        results: The run's results.
        progress: Returns the counts of the run.
        inputs: The caller's inputs; their number is the total, as long as no folder among them has more recordings.
    """
    with warnings.catch_warnings():  # a notebook without ipywidgets gets a bar of text, which needs no advice
        warnings.filterwarnings("ignore", "IProgress not found")
        from tqdm.auto import tqdm

    total = len(inputs) if isinstance(inputs, (list, tuple)) and not is_one(inputs) else None
    start = perf_counter()
    with closing(results), tqdm(total=total, unit="file") as bar:
        for result in results:
            counts = progress()
            if bar.total is not None and counts.files > bar.total:
                bar.total = None
            speed = counts.audio_s / (perf_counter() - start)
            failed = f", {counts.failed} failed" if counts.failed else ""
            bar.set_postfix_str(f"{counts.audio_s / 3600:.2f} h, {speed:.0f}x{failed}", refresh=False)
            bar.update()
            yield result
