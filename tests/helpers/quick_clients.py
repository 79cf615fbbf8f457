"""The files of botocore that each client of a store reads, read once: half of what a client costs. For processes that fork."""

from __future__ import annotations

from functools import cache

import boto3
from botocore.loaders import JSONFileLoader

_read = cache(JSONFileLoader().load_file)
JSONFileLoader.load_file = lambda self, path: _read(path)
boto3.Session("none", "none", region_name="us-east-1").client("s3")
