#!/bin/sh
# Unpacks Ferroce for a job of continuous integration: setup.sh PACKAGE DIRECTORY.
#
# PACKAGE: the file or the URL of a tarball of `cargo xtask package`; SHA256SUMS is looked for beside it. DIRECTORY: a new one, or one
# of an earlier run. Prints the path of the command; what else it says goes to standard error.
set -eu
[ $# = 2 ] || { echo "usage: setup.sh PACKAGE DIRECTORY" >&2; exit 2; }
package=$1 directory=$2
name=${package##*/}

mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
case $package in
https://*)
    curl --fail --silent --show-error --location --retry 3 --output "$directory/$name" "$package"
    curl --fail --silent --show-error --location --retry 3 --output "$directory/SHA256SUMS" "${package%/*}/SHA256SUMS"
    ;;
*)
    cp "$package" "$directory/$name"
    cp "$(dirname "$package")/SHA256SUMS" "$directory/SHA256SUMS"
    ;;
esac
# The line of this file alone, and it has to be there.
awk -v name="$name" '$2 == name' "$directory/SHA256SUMS" > "$directory/expected"
[ -s "$directory/expected" ] || { echo "setup.sh: SHA256SUMS doesn't name $name" >&2; exit 1; }
(cd "$directory" && sha256sum --quiet --check expected) >&2
tar -C "$directory" -xzf "$directory/$name"
rm "$directory/$name" "$directory/SHA256SUMS" "$directory/expected"

command=$directory/${name%.tar.gz}/bin/ferroce
"$command" doctor >&2
echo "$command"
