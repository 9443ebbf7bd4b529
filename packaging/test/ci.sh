#!/bin/sh
# The steps of action.yml, github.yml and gitlab.yml, as a runner carries them out, then a command of the user's without `ferroce run`.
set -eu
package=$(echo /packages/ferroce-[0-9]*-linux-gnu.tar.gz)

# What stands behind `run: |`, less its indentation.
mkdir /tmp/runner /tmp/job
sed -n '/^      run: |$/,$p' /packages/action.yml | sed '1d; s/^        //' > /tmp/runner/step.sh
export RUNNER_TEMP=/tmp/runner GITHUB_ACTION_PATH=/packages
export GITHUB_OUTPUT=/tmp/runner/output GITHUB_PATH=/tmp/runner/path GITHUB_ENV=/tmp/runner/env
SHA256= PACKAGE=$package EVERYWHERE=true VERSION=v0 sh -e /tmp/runner/step.sh 2> /tmp/said.txt || { cat /tmp/said.txt; exit 1; }
grep -q "^command=/tmp/runner/ferroce/" /tmp/runner/output
(
    while read -r line; do export "$line"; done < /tmp/runner/env
    while read -r line; do PATH=$line:$PATH; done < /tmp/runner/path
    ibv_devices | grep -q ferroce0
    ls /sys/class/infiniband | grep -q ferroce0
    rdma link show | grep -q ferroce0
    ferroce doctor > /dev/null
)
# The default: only `ferroce run` shows the devices.
rm /tmp/runner/env /tmp/runner/path
SHA256= PACKAGE=$package EVERYWHERE=false VERSION=v0 sh -e /tmp/runner/step.sh 2> /tmp/said.txt || { cat /tmp/said.txt; exit 1; }
test ! -e /tmp/runner/env
(
    PATH=$(cat /tmp/runner/path):$PATH
    # Steps after ours; there is no cargo here, but a program of that name that looks for devices.
    printf '#!/bin/sh\nibv_devices\n' > /tmp/job/cargo
    chmod +x /tmp/job/cargo
    sed -n '/- uses: ferroce/,$s/^      - run: //p' /packages/packaging/github.yml > /tmp/job/steps.sh
    PATH=/tmp/job:$PATH sh -e /tmp/job/steps.sh | grep -q ferroce0
)

# A file that differs from its checksum is refused: that of SHA256SUMS, and one that is given.
mkdir /tmp/forged
cp "$package" /packages/SHA256SUMS /tmp/forged
echo >> /tmp/forged/"${package##*/}"
if sh /packages/packaging/setup.sh /tmp/forged/"${package##*/}" /tmp/forged/to 2> /dev/null; then
    echo "a forged package was taken"
    exit 1
fi
if sh /packages/packaging/setup.sh "$package" /tmp/forged/to "$(echo forged | sha256sum | cut -d ' ' -f 1)" 2> /dev/null; then
    echo "a package with another checksum was taken"
    exit 1
fi

# What stands in before_script, a command a line.
sed -n '/before_script:/,$p' /packages/packaging/gitlab.yml | sed '1d; s/^    - //' > /tmp/job/script.sh
echo "ibv_devices | grep -q ferroce0" >> /tmp/job/script.sh
(cd /tmp/job && CI_PROJECT_DIR=/tmp/job SETUP_FERROCE_SCRIPT=/packages/packaging/setup.sh SETUP_FERROCE_PACKAGE=$package sh -e script.sh 2> /tmp/said.txt) || { cat /tmp/said.txt; exit 1; }
rm -r /tmp/runner /tmp/job /tmp/forged
echo "ci: the steps of action.yml, github.yml and gitlab.yml, and a command after each"
