"""Options of `fastscribe transcribe` for a run on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from fastscribe.cli.app import options_in
from fastscribe.cli.room_options import AddedOptions, value_of
from fastscribe.cli.run_hooks import RunHook

if TYPE_CHECKING:
    from fastscribe.cli.run_hooks import TranscribeJob
    from fastscribe.ray.run import RayTranscriber
    from fastscribe.transcriber import Transcriber

_job_option = options_in("Big jobs")


class RayHook(RunHook):
    """Runs on the actors of a cluster."""

    loads = is_elsewhere = True

    @contextmanager
    def load(self, job: TranscribeJob, say: Callable[[str], None]) -> Iterator[Transcriber]:
        """Yield a transcriber of the cluster, which is left with the block."""
        from fastscribe.ray.run import RayTranscriber
        from fastscribe.ray.worker import Setup

        with RayTranscriber.start(Setup(job.model, job.device, job.dtype, job.options), say) as transcriber:
            yield transcriber

    def digest(self, transcriber: Transcriber) -> str:
        """Return the digest of the model as a worker has read it."""
        return cast("RayTranscriber", transcriber).model_digest


def _of_transcribe(
    context: typer.Context,
    engine: Annotated[
        Literal["local", "ray"],
        _job_option(
            "--engine",
            help="Run here, or on a Ray cluster.\fray needs the extra ray; it takes the cluster that "
            "RAY_ADDRESS names or that runs on this machine, else this machine alone. The results are the same. See the guide "
            "to Ray.",
        ),
    ] = "local",
) -> RunHook | None:
    """Return where --engine ray runs; None without it. Raises typer.BadParameter for options that do not fit."""
    if engine == "local":
        return None
    device = value_of(context, "device")
    if device not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(
            f"--device {device}: with --engine ray it is auto, cpu or cuda: Ray numbers the devices"
        )
    if value_of(context, "devices") is not None:
        raise typer.BadParameter("--devices and --engine ray exclude each other: Ray gives each worker its device")
    if value_of(context, "report_html") is not None:
        raise typer.BadParameter("--report-html shows the batches of one process, so it does not go with --engine ray")
    if value_of(context, "dry_run"):
        raise typer.BadParameter("--dry-run times this machine, so it does not go with --engine ray: leave that out")
    return RayHook()


OPTIONS = {"transcribe": AddedOptions(_of_transcribe, after="--shard")}
