#!/bin/sh
# Gives a virtual environment etcd and etcdctl of Debian or Ubuntu, as bin/etcd and bin/etcdctl, for the tests and for
# local clusters. The packages are unpacked, not installed: that needs no root, starts no service, and changes nothing
# outside the folder. A program that is there already (in the environment, on the PATH, or etcd in SULINA_ETCD) is not
# fetched. Where one cannot be had, it says so and what to do; that is no error here, but `make test` then fails, unless
# it is told to do without (SULINA_WITHOUT=etcd).
#
#     tools/install_etcd.sh .venv
set -eu

bin=$1/bin
work=

missing() {
    echo "there is no $1: $2" >&2
    echo "install etcd 3.4 or newer (Debian, Ubuntu: apt-get install etcd-server etcd-client), or set SULINA_ETCD to the" >&2
    echo "path of etcd; until then make test fails, unless it is told SULINA_WITHOUT=etcd" >&2
    exit 0
}

begin() { # once, before the first package
    for tool in apt-get dpkg-deb; do
        command -v $tool >/dev/null 2>&1 || missing "$1" "this machine has no $tool"
    done
    echo "fetching etcd, once …"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
}

apt() { # with the options given
    (cd "$work" && apt-get --quiet=2 -o Acquire::Retries=2 -o Acquire::http::Timeout=20 -o APT::Sandbox::User=root \
        "$@") >"$work/log" 2>&1
}

unpack() { # program, package
    target=$bin/$1
    if [ -x "$target" ] || command -v "$1" >/dev/null 2>&1; then
        return
    fi
    [ -n "$work" ] || begin "$1"
    # The machine's own lists may be missing or too old: then with fresh ones of our own.
    own="-o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache"
    if ! apt download "$2"; then
        # shellcheck disable=SC2086
        apt $own update || true
        # shellcheck disable=SC2086
        apt $own download "$2" || missing "$1" "apt-get download $2 failed: $(tail -n 1 "$work/log")"
    fi
    dpkg-deb --extract "$work/$2"_*.deb "$work/$2" || missing "$1" "its package cannot be unpacked"
    # Aside, then renamed: half a file is never taken for the program.
    cp "$work/$2/usr/bin/$1" "$target.aside"
    [ "$1" = etcdctl ] && ask=version || ask=--version
    "$target.aside" $ask >/dev/null 2>&1 || { rm -f "$target.aside"; missing "$1" "that of the package does not run here"; }
    mv "$target.aside" "$target"
}

[ -n "${SULINA_ETCD:-}" ] || unpack etcd etcd-server
unpack etcdctl etcd-client
