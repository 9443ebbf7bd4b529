#!/bin/sh
# The rpm, installed to an empty directory, used and removed: rpm.sh PACKAGES. There is no system of rpm's here to install it to.
set -eu
root=$(mktemp -d)
trap 'rm -r "$root"' EXIT
rpm="rpm --root $root --dbpath /var/lib/rpm"
$rpm --initdb
$rpm --install --nodeps --force-debian "$1"/ferroce-[0-9]*."$(uname -m)".rpm
$rpm --verify --nodeps ferroce
"$root/usr/bin/ferroce" --version
"$root/usr/bin/ferroce" run true
for file in man/man1/ferroce.1 man/man1/ferroce-top.1 bash-completion/completions/ferroce zsh/site-functions/_ferroce \
	fish/vendor_completions.d/ferroce.fish ferroce/valgrind.supp; do
	test -s "$root/usr/share/$file"
done
test -z "$($rpm --query --list ferroce | grep -v '^/usr/\(bin/ferroce$\|lib/ferroce\|share/doc/ferroce\|share/man/man1/ferroce\|share/ferroce\(/valgrind\.supp\)\?$\|share/.*/_\?ferroce\(\.fish\)\?$\)')"
$rpm --erase --force-debian ferroce
test -z "$(find "$root" -name '*ferroce*' -o -name '*libibverbs*')"
echo "rpm: installed, used, removed; nothing is left"
