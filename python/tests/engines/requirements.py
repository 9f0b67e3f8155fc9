#!/usr/bin/env python3
"""Prints what a wheel requires, without torch and what is built for it, which another index has.

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
