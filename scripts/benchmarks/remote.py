"""Recordings in a store beside the same files on a disk: files per second, requests and bytes, and the memory of a listing.

    python -m scripts.benchmarks.remote [OUT.json] [--clips 1000] [--latencies-ms 0,20,100] [--listed 1000000]

A process of its own serves clips from memory as S3 does, over HTTP on the loopback, and answers each request after a
latency. The real run loop reads them around an engine that takes no time (host.py), so that the store alone limits it. Long
recordings are read as parts of `max_utterance_s`, in the order of their lengths. The listing is of names that the server
makes up, 1,000 a page.

Progress goes to stderr; the last line of stdout is the JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fastscribe._system import remote
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.pipeline.loader import REMOTE_THREADS
from scripts.benchmarks.host import KINDS, ROOT, TOKENS_A_SECOND, make_clips, run_once, transcriber

_PAGE = 1000
_OBJECT = (
    "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;{}&quot;</ETag>"
    "<Size>{}</Size></Contents>"
)


class Server:
    """A bucket of a folder's files. "listed/" below it holds as many made-up names as are asked for."""

    def __init__(self, folder: Path, listed: int, latency_s: float) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        self._objects = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        self._listed, self._latency_s = listed, latency_s
        self.requests, self.sent_bytes = 0, 0

    async def serve(self, pipe: Connection) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=256)
        pipe.send(server.sockets[0].getsockname()[1])
        while await asyncio.to_thread(pipe.recv):
            pipe.send((self.requests, self.sent_bytes))
            self.requests = self.sent_bytes = 0

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                await asyncio.sleep(self._latency_s)
                await self._answer(writer, head[0].split()[1], headers.get("range", ""))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, target: str, span: str) -> None:
        url = urlsplit(target)
        key, query = unquote(url.path).partition("/bucket")[2].lstrip("/"), parse_qs(url.query)
        data, status, extra = (self._page(query) if not key else self._objects[key]), "200 OK", ""
        if span:
            begin, _, end = span.removeprefix("bytes=").partition("-")
            stop, size = min(len(data), int(end) + 1 if end else len(data)), len(data)
            data, status = data[int(begin) : stop], "206 Partial Content"
            extra = f"Content-Range: bytes {begin}-{stop - 1}/{size}\r\n"
        self.requests += 1
        self.sent_bytes += len(data)
        date = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
        writer.write(
            f'HTTP/1.1 {status}\r\n{extra}{date}ETag: "1"\r\nContent-Length: {len(data)}\r\n\r\n'.encode() + data
        )
        await writer.drain()

    def _page(self, query: dict[str, list[str]]) -> bytes:
        prefix, begin = query.get("prefix", [""])[0], int(query.get("continuation-token", ["0"])[0])
        if prefix == "listed/":
            number, keys = self._listed, [f"listed/{n:09d}.wav" for n in range(begin, min(begin + _PAGE, self._listed))]
            found = [(key, 1) for key in keys]
        else:
            below = [key for key in self._objects if key.startswith(prefix)]
            number, found = len(below), [(key, len(self._objects[key])) for key in below[begin : begin + _PAGE]]
        is_last = begin + _PAGE >= number
        more = "" if is_last else f"<NextContinuationToken>{begin + _PAGE}</NextContinuationToken>"
        objects = "".join(_OBJECT.format(key, 1, size) for key, size in found)
        truncated = f"<IsTruncated>{str(not is_last).lower()}</IsTruncated>"
        return f"<ListBucketResult><Name>bucket</Name>{truncated}{more}{objects}</ListBucketResult>".encode()


def _serve(folder: Path, listed: int, latency_s: float, pipe: Connection) -> None:
    asyncio.run(Server(folder, listed, latency_s).serve(pipe))


@contextmanager
def serving(folder: Path, latency_s: float, listed: int = 0) -> Iterator[Connection]:
    """Point AWS's environment variables at a server. Its pipe answers True with requests and bytes since the last time."""
    pipe, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(folder, listed, latency_s, theirs))
    process.start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{pipe.recv()}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
    }
    remote.forget_stores()
    try:
        yield pipe
    finally:
        process.terminate()
        process.join()


def measure_runs(
    folder: Path, name: str, latency_s: float, checkpoint: Checkpoint, asked: argparse.Namespace
) -> dict[str, Any]:
    """Run over folder/name in a store, in which `folder` is the bucket. A negative latency: on the disk."""
    run = transcriber(checkpoint, round(asked.seconds * TOKENS_A_SECOND), None)
    turns, counts = [], (0, 0)
    if latency_s < 0:
        turns = [run_once(run, folder / name, _new_folder(folder)) for _ in range(asked.repeats + 1)]
    else:
        with serving(folder, latency_s) as pipe:
            for _ in range(asked.repeats + 1):
                turns.append(run_once(run, f"s3://bucket/{name}", _new_folder(folder)))
                pipe.send(True)
                counts = pipe.recv()
    paths = list((folder / name).iterdir())
    wall_s, cpu_s = (median(turn[index] for turn in turns[1:]) for index in (0, 1))
    num_bytes = sum(path.stat().st_size for path in paths)
    found: dict[str, Any] = {
        "files": len(paths),
        "bytes": num_bytes,
        "wall_s": round(wall_s, 3),
        "files_per_s": round(len(paths) / wall_s, 1),
        "audio_s_per_s": round(turns[0][2] / wall_s, 1),
        "cpu_us_per_file": round(cpu_s / len(paths) * 1e6, 1),
    }
    if latency_s >= 0:
        found |= {
            "latency_ms": latency_s * 1000,
            "requests_per_file": round(counts[0] / len(paths), 3),
            "fetched_share": round(counts[1] / num_bytes, 3),
        }
    print(name, json.dumps(found), file=sys.stderr, flush=True)
    return found


def _new_folder(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder.parent))


def measure_listing(folder: Path, listed: int) -> dict[str, Any]:
    with serving(folder, 0.0, listed):
        next(remote.list_objects("s3://bucket/listed"))
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        number = sum(1 for _ in remote.list_objects("s3://bucket/listed"))
        wall_s = time.perf_counter() - start
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert number == listed
    return {"objects": number, "wall_s": round(wall_s, 2), "peak_memory_growth_mib": round(grown / 1024, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT.json")
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=8.0, help="mean length of a clip")
    parser.add_argument("--long-files", type=int, default=6)
    parser.add_argument("--long-seconds", type=float, default=1200.0, help="mean length of a long recording")
    parser.add_argument("--latencies-ms", default="0,20,100")
    parser.add_argument("--listed", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3, help="runs, beside one that is discarded")
    parser.add_argument("--model", default=ROOT / "tests/data/models/tdt_demo/model.nemo", help="its tokenizer counts")
    asked = parser.parse_args()
    checkpoint = read_checkpoint(asked.model)
    latencies_s = [float(value) / 1000 for value in asked.latencies_ms.split(",")]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "bucket"
        folder.mkdir()
        make_clips(folder / "clips", KINDS["flac"], asked.clips, asked.seconds)
        make_clips(folder / "long", KINDS["flac"], asked.long_files, asked.long_seconds)
        listing = measure_listing(folder, asked.listed)
        print("listing", json.dumps(listing), file=sys.stderr, flush=True)
        for name in ("clips", "long"):
            on_disk = measure_runs(folder, name, -1.0, checkpoint, asked)
            in_store = [measure_runs(folder, name, latency_s, checkpoint, asked) for latency_s in latencies_s]
            found[name] = {"disk": on_disk, "store": in_store}
    document = {
        "benchmark": "remote",
        "machine": platform.processor() or platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "threads": REMOTE_THREADS,
        "mean_clip_s": asked.seconds,
        "mean_long_s": asked.long_seconds,
        "statistic": f"median of {asked.repeats}",
        "listing": listing,
        **found,
    }
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
