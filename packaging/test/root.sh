#!/bin/sh
# Installs, uses and removes the packages in a clean root: root.sh ROOT PACKAGES WHEELS CONFINE ARCH. ROOT may be several directories,
# joined by colons, the first one on top. It runs as root in namespaces of its own (network, mounts, processes); all changes go to
# memory and end with it. CONFINE runs a program under a container's profile.
set -eu
root=$1 packages=$2 wheels=$3 confine=$4 arch=$5
here=$(cd "$(dirname "$0")" && pwd)

# In a user namespace an overlay notes which directories are new with attributes of the user's, or not at all.
options=
[ "$(uname -m)" = "$arch" ] || options=,userxattr

work=$(mktemp -d)
mount -t tmpfs -o mode=755 none "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/work$options" none "$work/root"
cd "$work/root"
mount -t proc proc proc
mount -t tmpfs -o mode=1777 none tmp
mkdir -p packages/pytest dev/shm home/user opt/elsewhere old
mount -t tmpfs -o mode=1777 none dev/shm
# In a user namespace a file that names a device is none.
if [ "$(uname -m)" != "$arch" ]; then
    touch packages/emulated
    for node in null zero full random urandom; do
        rm -f "dev/$node"
        touch "dev/$node"
        mount --bind "/dev/$node" "dev/$node"
    done
fi
case $root in
*:*) touch packages/layered ;;
esac
case $arch in
x86_64) debian=amd64 ;;
aarch64) debian=arm64 ;;
esac
cp "$packages"/ferroce*"$arch"* "$packages"/ferroce_*"$debian".deb "$packages/SHA256SUMS" packages/
cp -r "$wheels/." packages/pytest/
cp -r "$here/.." packages/packaging
cp "$here/../../action.yml" "$here/../../docs/PACKAGES.md" packages/
cp "$confine" packages/confine
echo "127.0.0.1 localhost" > etc/hosts
chmod -R a+rX packages
chown 1000:1000 home/user
ip link set lo up

# A process of a mere chroot may make no user namespaces, which the wheel's fixtures do.
pivot_root . old
exec chroot . sh -eu /packages/packaging/test/inside.sh
