#!/usr/bin/env python3
"""Prints a wheel's requirements, except torch and packages built for it, which come from another index.

usage: requirements.py WHEEL
"""

import sys
import zipfile
from email.parser import BytesParser


def main() -> None:
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = BytesParser().parsebytes(wheel.read(name), headersonly=True)
    for required in metadata.get_all("Requires-Dist", []):
        if not required.startswith("torch") and "extra ==" not in required:
            print(required)


if __name__ == "__main__":
    main()
