"""Lists and deletes objects, as no program under test does it. Signed by hand (AWS Signature Version 4), path style."""

import datetime
import hashlib
import hmac
import os
import urllib.parse
import urllib.request
import xml.etree.ElementTree

NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def request(method, path, query=()):
    """The answer's body."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    host, region = endpoint.split("://")[1], os.environ["AWS_REGION"]
    time = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    path = urllib.parse.quote(path)
    query = urllib.parse.urlencode(sorted(query), quote_via=urllib.parse.quote, safe="")
    body = hashlib.sha256(b"").hexdigest()
    headers = f"host:{host}\nx-amz-content-sha256:{body}\nx-amz-date:{time}\n"
    names = "host;x-amz-content-sha256;x-amz-date"
    canonical = "\n".join([method, path, query, headers, names, body])
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", time, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    for part in (time[:8], region, "s3", "aws4_request", text):
        key = hmac.digest(key, part.encode(), "sha256")
    authorization = f"AWS4-HMAC-SHA256 Credential={os.environ['AWS_ACCESS_KEY_ID']}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    sent = {"Authorization": authorization, "x-amz-content-sha256": body, "x-amz-date": time}
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}{path}?{query}", method=method, headers=sent)) as answer:
        return answer.read()


def sizes(url):
    """The sizes of all objects whose address begins with `url`, by path."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    found, query = {}, {"list-type": "2", "prefix": prefix}
    while True:
        page = xml.etree.ElementTree.fromstring(request("GET", f"/{bucket}", query.items()))
        for entry in page.iter(f"{NAMESPACE}Contents"):
            found[f"/{bucket}/{entry.findtext(f'{NAMESPACE}Key')}"] = int(entry.findtext(f"{NAMESPACE}Size"))
        if not (more := page.findtext(f"{NAMESPACE}NextContinuationToken")):
            return found
        query["continuation-token"] = more


def delete(url):
    """Deletes all objects whose address begins with `url`."""
    for path in sizes(url):
        request("DELETE", path)
