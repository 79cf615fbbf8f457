"""Options of `fastscribe transcribe` for a run on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from fastscribe.cli.app import options_in
from fastscribe.cli.room_options import AddedOptions, value_of
from fastscribe.cli.run_part import Engine, RunPart

if TYPE_CHECKING:
    from fastscribe.cli.run_part import TranscribeJob
    from fastscribe.dry_run import DryRunReport
    from fastscribe.ray.run import RayTranscriber
    from fastscribe.transcriber import Transcriber

_job_option = options_in("Big jobs")


class RayEngine(Engine):
    """The Engine of a run whose model is on the workers of a cluster.

    Args:
        address: The cluster's; None: as Ray finds it.
        workers: Their number; None: one for each GPU, or for each node.
    """

    option, is_here, takes_helpers = "--engine ray", False, False

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self._address, self._workers = address, workers

    @contextmanager
    def load(self, job: TranscribeJob, say: Callable[[str], None]) -> Iterator[Transcriber]:
        """Yield a transcriber of the cluster's workers, which end with the block."""
        from fastscribe.ray.pool import Size
        from fastscribe.ray.run import RayTranscriber

        size = Size(self._workers)
        with RayTranscriber.start(
            job.model, job.device, job.dtype, job.options, say, address=self._address, size=size, style=job.style
        ) as transcriber:
            yield transcriber

    def digest(self, job: TranscribeJob, transcriber: Transcriber) -> str:
        """Return the digest of the model as the workers read it."""
        return cast("RayTranscriber", transcriber).model_digest

    @property
    def estimate(self) -> Callable[..., DryRunReport]:
        """What has the workers probe the inputs and time a few batches."""
        from fastscribe.ray.run import RayTranscriber

        return RayTranscriber.estimate


class RayPart(RunPart):
    """Runs on a cluster."""

    def __init__(self, engine: RayEngine) -> None:
        super().__init__()
        self.engine = engine


def _of_transcribe(
    context: typer.Context,
    engine: Annotated[
        Literal["local", "ray"],
        _job_option(
            "--engine",
            help="Run here, or on a Ray cluster.\fray needs the extra ray. The results are the same. See "
            "the guide to Ray.",
        ),
    ] = "local",
    ray_address: Annotated[
        str | None,
        _job_option(
            "--ray-address",
            metavar="ADDRESS",
            help="Cluster of --engine ray.\fauto, or HOST:PORT. Default: the one that RAY_ADDRESS names or that runs on this "
            "machine; else this machine alone.",
        ),
    ] = None,
    ray_workers: Annotated[
        int | None,
        _job_option(
            "--ray-workers",
            metavar="N",
            min=1,
            help="Processes with a model on the cluster.\fDefault: one for each GPU, or for each node without GPUs.",
        ),
    ] = None,
) -> RunPart | None:
    """Return where --engine ray runs; None without it. Raises typer.BadParameter for options that do not fit."""
    if engine == "local":
        for name, given in (("--ray-address", ray_address), ("--ray-workers", ray_workers)):
            if given is not None:
                raise typer.BadParameter(f"{name} needs --engine ray")
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
    return RayPart(RayEngine(ray_address, ray_workers))


OPTIONS = {"transcribe": AddedOptions(_of_transcribe, after="--shard")}
