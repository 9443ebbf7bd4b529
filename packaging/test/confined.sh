#!/bin/sh
# Tests the tarball in a container whose runtime refuses copies between processes. `ferroce doctor` reports it.
set -eu
expect() { grep -q "^$1:.$2$" /proc/self/status || { echo "this isn't confined: no $1 $2"; exit 1; }; }
expect CapBnd 0000000000000000
expect NoNewPrivs 1
expect Seccomp 2
for file in /file /dev/shm/file /home/user/file; do
    if touch $file 2> /dev/null; then
        echo "this isn't confined: $file can be written"
        exit 1
    fi
done
mkdir /tmp/ferroce
tar -C /tmp/ferroce -xzf /packages/ferroce-[0-9]*-linux-gnu.tar.gz
sh -eu /packages/packaging/test/use.sh /tmp/ferroce/*/bin/ferroce
grep -v "^  ok" /tmp/doctor.txt
grep -q "^note .*The kernel refuses process_vm_readv" /tmp/doctor.txt
rm -r /tmp/ferroce /tmp/*.txt
test -z "$(ls -A /tmp)"
echo "confined: unpacked, used, removed"
