#!/bin/sh
# What root.sh does in the clean root: tarball, wheel, the page of packages and CI's steps as an ordinary user, the same under a container's
# confinement, and the deb as root.
set -eu
umount -l /old
rmdir /old
work=$(mktemp -d /packages/work.XXXX)
trap 'rm -r "$work"' EXIT

PATH=/usr/sbin:/usr/bin:/sbin:/bin
# Each by its number: the setpriv of older systems takes "all" only from a kernel that has no newer ones than it knows.
capabilities=$(seq -s , -f "-cap_%g" 0 "$(cat /proc/sys/kernel/cap_last_cap)")
unprivileged="setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=$capabilities"
ordinary="env -i HOME=/home/user PATH=/usr/bin:/bin LC_ALL=C.UTF-8 sh -eu"
admin() { env -i HOME=/root PATH=$PATH LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
user() { $unprivileged $ordinary "/packages/packaging/test/$1"; }
files() { find / -xdev \( -path /packages -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache \) -prune -o -print | sort; }

user tarball.sh
if [ ! -e /packages/emulated ]; then
    # Where Python is older than the wheel takes, there is nothing to try it with.
    if [ -n "$(ls /packages/pytest)" ]; then
        user wheel.sh
        user lines.sh
    fi
    user ci.sh

    # As a container's runtime does it: its profile of system calls, no capability, nor a way to one, a root that is read-only.
    unshare --mount --propagation private sh -eu -c "
        umount /dev/shm /tmp
        mount -o remount,bind,ro /
        mount -t tmpfs -o mode=1777 none /tmp
        exec $unprivileged --bounding-set=$capabilities --no-new-privs /packages/confine container $ordinary /packages/packaging/test/confined.sh"
fi

files > "$work/before"
library=$(admin sh -c 'ldconfig -p | grep libibverbs.so.1')
# The C library that is put over a root isn't the one that dpkg knows.
ignored=
[ ! -e /packages/layered ] || ignored=--ignore-depends=libc6
admin dpkg $ignored -i /packages/ferroce_*.deb > /dev/null
test "$library" = "$(admin sh -c 'ldconfig; ldconfig -p | grep libibverbs.so.1')"
$unprivileged $ordinary /packages/packaging/test/use.sh ferroce
admin dpkg --purge ferroce > /dev/null
files > "$work/after"
diff "$work/before" "$work/after"
# Also of what has run in between.
left=$(find / \( -path /packages -o -path /proc \) -prune -o -name '*ferroce*' -print; ls -A /dev/shm)
test -z "$left" || { echo "left behind: $left"; exit 1; }
echo "deb: installed, used, removed; nothing is left"
