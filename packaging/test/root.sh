#!/bin/sh
# Installs, uses and removes the packages in a clean root, as root.sh ROOT PACKAGES WHEELS. It runs as root in namespaces of its own
# (network, mounts, processes); all changes go to memory and end with it.
set -eu
root=$1 packages=$2 wheels=$3
here=$(cd "$(dirname "$0")" && pwd)

work=$(mktemp -d)
mount -t tmpfs -o mode=755 none "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/work" none "$work/root"
cd "$work/root"
mount -t proc proc proc
mount -t tmpfs -o mode=1777 none tmp
mkdir -p packages/pytest dev/shm home/user opt/elsewhere
mount -t tmpfs -o mode=1777 none dev/shm
cp "$packages"/ferroce* "$packages/SHA256SUMS" packages/
cp "$wheels"/* packages/pytest/
cp -r "$here/.." packages/packaging
cp "$here/../../action.yml" "$here/../../README.md" packages/
echo "127.0.0.1 localhost" > etc/hosts
chmod -R a+rX packages
chown 1000:1000 home/user
ip link set lo up

user() { chroot --userspec=1000:1000 --groups= . /usr/bin/env -i HOME=/home/user PATH=/usr/bin:/bin LC_ALL=C.UTF-8 sh -eu "$@"; }
admin() { chroot . /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
files() { find . -xdev \( -path ./packages -o -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/cache \) -prune -o -print | sort; }

user /packages/packaging/test/tarball.sh
user /packages/packaging/test/wheel.sh
user /packages/packaging/test/readme.sh
user /packages/packaging/test/ci.sh

files > "$work/before"
library=$(admin sh -c 'ldconfig -p | grep libibverbs.so.1')
admin sh -c 'dpkg -i /packages/ferroce_*.deb' > /dev/null
test "$library" = "$(admin sh -c 'ldconfig; ldconfig -p | grep libibverbs.so.1')"
user /packages/packaging/test/use.sh ferroce
admin dpkg --purge ferroce > /dev/null
files > "$work/after"
diff "$work/before" "$work/after"
echo "deb: installed, used, removed; nothing is left"
