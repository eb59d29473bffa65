"""What is a name? Letters, digits and a few marks: never a path, whatever file or argument it came from."""

import hashlib
import re

NAME = r"[A-Za-z0-9][A-Za-z0-9_.+=,-]{0,149}"


def data_name(data: str) -> str:
    """Return a data set's name as a part of other names; your own data is named by its last folder and a hash.

    >>> data_name("cifar10"), data_name("folder:/home/me/my images")
    ('cifar10', 'folder-my-images-eb013481')
    """
    if re.fullmatch(NAME, data):
        return data
    kind, _, path = data.partition(":")
    last = re.sub(r"[^A-Za-z0-9]+", "-", path.rstrip("/").rpartition("/")[2]).strip("-")[:40]
    digest = hashlib.sha256(data.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return "-".join(part for part in (re.sub(r"\W", "", kind, flags=re.ASCII), last, digest) if part)
