#!/bin/sh
# The steps of a release that need no forge: release.sh check TAG | notes TAG | build.
#
# check: the tag is the version of Cargo.toml, and CHANGELOG.md has its notes. notes: prints them. build: makes target/packages for both
# processors, or for those in ARCHS.
set -eu
cd "$(dirname "$0")/.."

version() { sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1; }
# The section of the changelog, without its heading.
notes() { awk -v heading="## [$1]" 'index($0, heading) == 1 { inside = 1; next } /^## / { inside = 0 } inside' CHANGELOG.md; }

case ${1:-} in
check)
    [ "${2:?a tag}" = "v$(version)" ] || { echo "release.sh: the tag is $2, and Cargo.toml has version $(version)" >&2; exit 1; }
    [ -n "$(notes "$(version)")" ] || { echo "release.sh: CHANGELOG.md has no section [$(version)]" >&2; exit 1; }
    ;;
notes)
    notes "${2#v}"
    ;;
build)
    arguments=
    for arch in ${ARCHS:-x86_64 aarch64}; do arguments="$arguments --arch $arch"; done
    # shellcheck disable=SC2086 # one word each
    cargo xtask package $arguments
    ;;
*)
    echo "usage: release.sh check TAG | notes TAG | build" >&2
    exit 2
    ;;
esac
