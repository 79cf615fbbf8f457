"""`--overwrite`: remove what earlier runs wrote, by their journals, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from fastscribe.errors import UsageError
from fastscribe.results.in_the_way import check_any_input, check_inputs
from fastscribe.results.ledger import Ledger
from fastscribe.results.output_run import OutputRun
from fastscribe.results.shards import Shard
from fastscribe.results.storage import Storage


def check_sharding(storage: Storage, shard: Shard) -> None:
    """Raise UsageError if a run into this place divided the inputs differently. Raises OSError."""
    for other in storage.shards():
        if other.count != shard.count:
            raise UsageError(
                f"{storage.where}: holds {storage.shown(other)}, of a run divided otherwise than {shard}: use another "
                "folder, or --overwrite to start over"
            )


def overwrite(storage: Storage, run: OutputRun, say: Callable[[str], object]) -> None:
    """Remove the results of a run's shard, and of runs that divided the inputs differently, after all checks.

    Args:
        storage: Where they are; the shard is locked.
        run: This run.
        say: Shows one line to the user, before a wait and about files that someone edited.

    Raises:
        UsageError: No input exists, a run that divides the inputs differently is at work, or a file that no run wrote is in
            the way of this run.
        OSError: The place cannot be read or written.
    """
    check_any_input(run.inputs)
    former = [one for one in storage.shards() if one == run.shard or one.count != run.shard.count]
    removable = storage.removable(former)
    storage.check_own_names(removable)
    check_inputs(storage, run.style.formats, run.inputs, Ledger(run.shard), removable.__contains__)
    storage.remove(former, say)
