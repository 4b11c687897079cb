#!/bin/sh
# Makes everything that the tests and the demo need, on a bare Debian or Ubuntu too: packages, then a virtual
# environment in .venv. May be repeated: where nothing changed it ends at once.
set -eu

cd "$(dirname "$0")/.."

# The first four build pystemd; those of the second line are what a test machine is made of; the last read man pages and
# completion, drive a terminal, and make a certificate.
packages="python3-dev gcc libc6-dev pkg-config libsystemd-dev python3 python3-venv make
systemd dbus libpam-systemd util-linux iproute2 psmisc
mandoc zsh fish tmux openssl"

fail() {
    printf 'setup: cannot %s\n' "$1" >&2
    [ -z "${2-}" ] || printf '       %s\n' "$2" >&2
    exit 1
}

run_quietly() { # WHAT HINT COMMAND...: its output is shown only where it fails
    what=$1 hint=$2
    shift 2
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        fail "$what" "$hint"
    fi
    rm -f "$log"
}

missing_packages() {
    for package in $packages; do
        state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || state=absent
        [ "$state" = installed ] || printf ' %s' "$package"
    done
}

install_packages() {
    command -v apt-get >/dev/null 2>&1 ||
        fail "install packages: there is no apt-get here" "use Debian 12, Ubuntu 24.04 or later"
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    [ "$(id -u)" = 0 ] ||
        fail "install$missing: only root may" "run it as root: sudo sh tools/setup.sh"
    echo "setup: installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    # One list that cannot be read, of some other vendor, need not stop us: the packages may be in the others.
    apt-get -qq update >/dev/null 2>&1 || echo "setup: not every package list could be read" >&2
    # shellcheck disable=SC2086 # a list of words
    run_quietly "install packages" "see the lines above; this needs a network" \
        apt-get -q install -y --no-install-recommends $missing
}

find_python() { # the distribution's own first: it is what the packages above belong to
    for python in /usr/bin/python3 /usr/bin/python3.1[1-9] python3 python3.14 python3.13 python3.12 python3.11; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    found=$(/usr/bin/python3 --version 2>&1) || found="no Python"
    fail "go on with $found: Python 3.11 or newer is needed" "use Debian 12, Ubuntu 24.04 or later"
}

make_environment() {
    .venv/bin/python -c '' 2>/dev/null || run_quietly "make .venv" "" "$1" -m venv --clear .venv
    echo "setup: installing Python packages into .venv"
    # Without a network, pip's waits between its tries would take minutes. The environment reaches the pip that it
    # starts for the build too.
    PIP_RETRIES=1 PIP_DISABLE_PIP_VERSION_CHECK=1
    export PIP_RETRIES PIP_DISABLE_PIP_VERSION_CHECK
    run_quietly "install Python packages" "see the lines above; this needs a network, and leave to write here" \
        .venv/bin/python -m pip install --quiet --editable '.[dev]'
}

stamp=.venv/setup-$(cat pyproject.toml tools/setup.sh | sha256sum | cut -c1-16)
if [ -e "$stamp" ] && .venv/bin/python -c '' 2>/dev/null; then
    exit 0
fi
install_packages
python=$(find_python)
make_environment "$python"
rm -f .venv/setup-*
: >"$stamp"
echo "setup: ready"
