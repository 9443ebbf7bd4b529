#!/bin/sh
# Waits until somebody listens at the port of the examples, 18515; ten seconds at most.
set -eu
waited=0
# 4853 is the port in the kernel's table of those who listen (0A).
until grep -q ":4853 [0:]* 0A" /proc/net/tcp /proc/net/tcp6; do
    waited=$((waited + 1))
    test $waited -lt 200 || { echo "nobody listens at port 18515"; exit 1; }
    sleep 0.05
done
