#!/bin/sh
# Waits at most ten seconds until a process listens at the port of the examples, 18515.
set -eu
waited=0
# In the kernel's table 4853 is the port in hexadecimal, and 0A means listening.
until grep -q ":4853 [0:]* 0A" /proc/net/tcp /proc/net/tcp6; do
    waited=$((waited + 1))
    test $waited -lt 200 || { echo "no process listens at port 18515"; exit 1; }
    sleep 0.05
done
