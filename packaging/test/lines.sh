#!/bin/sh
# The lines by which docs/PACKAGES.md installs the wheel, in a fresh environment of Python and beside the packages.
set -eu
sh -eu /packages/packaging/test/environment.sh /tmp/reader
. /tmp/reader/bin/activate
cd /packages
sed -n '/^A wheel brings/,$p' PACKAGES.md | sed -n '/^```console$/,/^```$/p' | sed '/^```$/q' | sed -n "s/x86_64/$(uname -m)/; s/^\$ //p" > /tmp/lines.sh
test "$(wc -l < /tmp/lines.sh)" = 3
# A reader's second is enough for the server to start. Where the machine is busy it isn't.
sed -i '1i sleep() { sh /packages/packaging/test/listening.sh; }' /tmp/lines.sh
timeout 60 sh -eu /tmp/lines.sh > /tmp/lines.txt 2>&1 || { cat /tmp/lines.txt; exit 1; }
grep -q "Nothing found that would stop a verbs program" /tmp/lines.txt
grep -q "1000 iters" /tmp/lines.txt
rm -r /tmp/reader
echo "PACKAGES.md: the three lines of the wheel"
