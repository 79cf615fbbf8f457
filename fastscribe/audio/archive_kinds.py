"""Archives, tables and compressed files that are given as recordings: what each is, and what to do with it. Pure."""

from __future__ import annotations

_UNPACK = "unpack it, and give the folder"
_STARTS = {
    b"PAR1": "is a Parquet table, not audio: in Python, give Transcriber.transcribe the audio of its rows"
    " (datasets.load_dataset), or write their paths to a CSV or JSON lines file",
    b"ARROW1": "is an Arrow table, not audio: in Python, give Transcriber.transcribe the audio of its rows",
    b"PK\3\4": f"is a zip archive, not audio: {_UNPACK} (a spreadsheet: save it as CSV)",
    b"PK\5\6": "is an empty zip archive, not audio",
    b"\x1f\x8b": "is compressed with gzip: unpack it with gunzip; a list may stay so, named as it is otherwise"
    " (.jsonl.gz, .csv.gz)",
    b"BZh": "is compressed with bzip2: unpack it",
    b"\xfd7zXZ\0": "is compressed with xz: unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd: unpack it",
    b"7z\xbc\xaf\x27\x1c": f"is a 7z archive, not audio: {_UNPACK}",
    b"Rar!": f"is a RAR archive, not audio: {_UNPACK}",
    b"\x89HDF": "is an HDF5 file, not audio: write its recordings to files",
}
_TAR_MAGIC = slice(257, 262)


def archive_problem(head: bytes) -> str | None:
    """Return what is wrong with a file that begins so, if it is an archive or a table; else None."""
    if head[_TAR_MAGIC] == b"ustar":
        return "is a tar archive, not audio: name it so that it ends in .tar, and it is read"
    return next((problem for start, problem in _STARTS.items() if head.startswith(start)), None)
