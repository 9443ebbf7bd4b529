#!/bin/sh
# Unpacks Ferroce for a job of continuous integration: setup.sh PACKAGE DIRECTORY [SHA256].
#
# PACKAGE: the file or the URL of a tarball of `cargo xtask package`. DIRECTORY: a new one, or one of an earlier run. Prints the path of the
# command; other output goes to standard error.
#
# SHA256 proves the tarball, where it is given. Otherwise SHA256SUMS beside a file does, and the attestation of the project's release
# workflow proves a URL, which `gh attestation verify` checks: a checksum from the place of the tarball would prove nothing.
set -eu
[ $# = 2 ] || [ $# = 3 ] || { echo "usage: setup.sh PACKAGE DIRECTORY [SHA256]" >&2; exit 2; }
package=$1 directory=$2 sha256=${3:-}
name=${package##*/}

mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
case $package in
https://*)
    curl --fail --silent --show-error --location --retry 3 --output "$directory/$name" "$package"
    ;;
*)
    cp "$package" "$directory/$name"
    # The line of this file alone, and it has to be there.
    if [ -z "$sha256" ]; then
        sha256=$(awk -v name="$name" '$2 == name { print $1 }' "$(dirname "$package")/SHA256SUMS")
        [ -n "$sha256" ] || { echo "setup.sh: SHA256SUMS doesn't name $name" >&2; exit 1; }
    fi
    ;;
esac
if [ -n "$sha256" ]; then
    echo "$sha256  $directory/$name" | sha256sum --quiet --check >&2
elif command -v gh > /dev/null; then
    gh attestation verify "$directory/$name" --repo ferroce/ferroce >&2
else
    echo "setup.sh: nothing proves $name: pass its SHA256 as third argument, or install gh, which verifies its attestation" >&2
    exit 1
fi
tar -C "$directory" -xzf "$directory/$name"
rm "$directory/$name"

command=$directory/${name%.tar.gz}/bin/ferroce
"$command" doctor >&2
echo "$command"
