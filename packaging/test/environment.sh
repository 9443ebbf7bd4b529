#!/bin/sh
# A fresh environment of Python: environment.sh DIRECTORY. pip before 20.3, as in Ubuntu 20.04, takes no wheel that says which glibc
# it needs (PEP 600): its user has to renew it.
set -eu
python3 -m venv "$1"
if "$1/bin/python3" -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) >= (20, 3))'; then
    "$1/bin/pip" --quiet --disable-pip-version-check install --no-index --find-links /packages/pytest --upgrade pip
fi
