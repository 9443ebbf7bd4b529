#!/bin/sh
# A fresh environment of Python: environment.sh DIRECTORY. pip before 20.3, as in Ubuntu 20.04, rejects wheels whose name
# contains the glibc version (PEP 600) and must be upgraded.
set -eu
python3 -m venv "$1"
if "$1/bin/python3" -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) >= (20, 3))'; then
    "$1/bin/pip" --quiet --disable-pip-version-check install --no-index --find-links /packages/pytest --upgrade pip
fi
