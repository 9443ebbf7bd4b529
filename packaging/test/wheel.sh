#!/bin/sh
# The wheel in a fresh environment of Python, its plugin, and its removal.
set -eu
cd /tmp
sh -eu /packages/packaging/test/environment.sh environment
environment/bin/pip --quiet --disable-pip-version-check install --no-index --find-links /packages/pytest pytest
find environment -name __pycache__ -prune -o -print | sort > before
environment/bin/pip --quiet --disable-pip-version-check install --no-index /packages/ferroce-*.whl
sh -eu /packages/packaging/test/use.sh /tmp/environment/bin/ferroce
# What pytest writes beside a test is not of the wheel, and pip leaves it.
PYTHONDONTWRITEBYTECODE=1 environment/bin/pytest -q -p no:cacheprovider --pyargs ferroce.examples > examples.txt || { cat examples.txt; exit 1; }
# Two hosts take namespaces that a user may make, which not every kernel lets.
grep -q "4 passed\|3 passed, 1 skipped" examples.txt
environment/bin/pip --quiet --disable-pip-version-check uninstall -y ferroce
find environment -name __pycache__ -prune -o -print | sort > after
diff before after
echo "wheel: installed, used, $(tail -1 examples.txt), removed"
