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
# The side that fails is reported with its words, soon, although the other one waits.
cat > test_failing_side.py <<'END'
import sys


def test_client_fails(ferroce_pair):
    wait, fail = "import time; time.sleep(60)", "import sys; sys.exit('the reason')"
    ferroce_pair([sys.executable, "-c", wait], [sys.executable, "-c", fail], port=None)
END
if PYTHONDONTWRITEBYTECODE=1 timeout 20 environment/bin/pytest -q -p no:cacheprovider test_failing_side.py > failing.txt; then exit 1; fi
grep -q "server took too long" failing.txt && grep -q "the reason" failing.txt || { cat failing.txt; exit 1; }
rm test_failing_side.py failing.txt
environment/bin/pip --quiet --disable-pip-version-check uninstall -y ferroce
find environment -name __pycache__ -prune -o -print | sort > after
diff before after
echo "wheel: installed, used, $(tail -1 examples.txt), removed"
