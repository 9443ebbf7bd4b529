#!/bin/sh
# The tarball, unpacked, moved and removed.
set -eu
cd /packages
# It has the packages for other processors as well.
sha256sum --quiet --check --ignore-missing SHA256SUMS
mkdir /tmp/first
tar -C /tmp/first -xzf /packages/ferroce-[0-9]*-linux-gnu.tar.gz
sh -eu /packages/packaging/test/use.sh /tmp/first/ferroce-*/bin/ferroce
mv /tmp/first /home/user/second
ln -s /home/user/second/ferroce-*/bin/ferroce /home/user/ferroce
sh -eu /packages/packaging/test/use.sh /home/user/ferroce
rm -r /home/user/second /home/user/ferroce
echo "tarball: unpacked, used, moved, used, removed"
