"""The user's usual credentials for obstore, which by itself knows environment variables and a cloud machine's own identity.

botocore finds AWS profiles, SSO, assumed roles, endpoints and a bucket's region. Google's default credentials are a file
that obstore reads. Azure's come from its environment variables or from the Azure CLI. Where there are none, requests go
unsigned, as public buckets want them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

from fastscribe.errors import UsageError, first_line

_RENEW_AFTER = timedelta(minutes=5)  # botocore itself renews what expires
_METADATA_HOST = "metadata.google.internal"
_METADATA_TIMEOUT_S = 1.0


def s3_options(url: SplitResult) -> dict[str, Any]:
    """Return obstore's options for a bucket: credentials, region and endpoint as AWS's own tools would choose them.

    Raises:
        UsageError: AWS_PROFILE names no profile, or its configuration cannot be read.
    """
    import boto3
    from botocore import UNSIGNED
    from botocore.client import Config
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.Session()
        credentials = session.get_credentials()
        config = Config(
            connect_timeout=5,
            read_timeout=30,
            retries={"total_max_attempts": 2},
            signature_version=None if credentials else UNSIGNED,
        )
        client = session.client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise UsageError(f"the AWS configuration cannot be used: {first_line(error)}") from error
    options: dict[str, Any] = {"bucket": url.netloc}
    endpoint = client.meta.endpoint_url
    if endpoint.partition("://")[2].rstrip("/").endswith(("amazonaws.com", "amazonaws.com.cn")):
        options["region"] = region = _bucket_region(client, url.netloc)
        if region.startswith("cn-"):  # obstore itself leaves out ".cn"
            options["endpoint"] = f"https://s3.{region}.amazonaws.com.cn"
    else:
        options |= {"endpoint": endpoint, "region": client.meta.region_name or "us-east-1"}
    if credentials is None:
        return options | {"skip_signature": True}
    return options | {"credential_provider": Boto3CredentialProvider(session, ttl=_RENEW_AFTER)}


def _bucket_region(client: Any, bucket: str) -> str:
    from botocore.exceptions import BotoCoreError, ClientError

    default = str(client.meta.region_name or "us-east-1")
    try:
        answer = client.head_bucket(Bucket=bucket)
    except ClientError as error:  # a refusal names the region too
        answer = error.response
    except BotoCoreError:  # the first request says what is wrong
        return default
    return str(answer["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region", default))


def google_options(url: SplitResult) -> dict[str, Any]:
    named = any(os.environ.get(name) for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"))
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud")
    default = folder / "application_default_credentials.json"
    options: dict[str, Any] = {"bucket": url.netloc}
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        emulator = emulator if "://" in emulator else f"http://{emulator}"
        unused = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        account = {"gcs_base_url": emulator, "disable_oauth": True, **unused}
        return options | {"base_url": emulator, "service_account_key": json.dumps(account)}
    if named:
        return options
    if default.is_file():
        return options | {"application_credentials": str(default)}
    return options if _is_on_google_cloud() else options | {"skip_signature": True}


def _is_on_google_cloud() -> bool:
    try:
        with socket.create_connection((os.environ.get("GCE_METADATA_HOST", _METADATA_HOST), 80), _METADATA_TIMEOUT_S):
            return True
    except OSError:
        return False


def azure_options(url: SplitResult) -> dict[str, Any]:
    """Return obstore's options for a container.

    Raises:
        UsageError: Neither the URL nor the environment names the storage account.
    """
    container, _, host = url.netloc.rpartition("@") if "@" in url.netloc else (url.netloc, "", "")
    connection = dict(
        part.split("=", 1) for part in os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";") if "=" in part
    )
    environment = os.environ.get
    account = (
        host.partition(".")[0]
        or environment("AZURE_STORAGE_ACCOUNT_NAME")
        or environment("AZURE_STORAGE_ACCOUNT")
        or connection.get("AccountName")
    )
    if not account:
        raise UsageError(
            "no storage account; set AZURE_STORAGE_ACCOUNT_NAME, or write "
            "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER"
        )
    options: dict[str, Any] = {"container_name": container, "account_name": account}
    if endpoint := connection.get("BlobEndpoint"):
        options["endpoint"] = endpoint
    key = environment("AZURE_STORAGE_ACCOUNT_KEY") or environment("AZURE_STORAGE_KEY") or connection.get("AccountKey")
    token = environment("AZURE_STORAGE_SAS_TOKEN") or connection.get("SharedAccessSignature")
    if key:
        return options | {"account_key": key}
    if token:
        return options | {"sas_key": token}
    if any(environment(name) for name in ("AZURE_CLIENT_ID", "AZURE_STORAGE_CLIENT_ID", "IDENTITY_ENDPOINT")):
        return options
    return options | ({"use_azure_cli": True} if shutil.which("az") else {"skip_signature": True})
