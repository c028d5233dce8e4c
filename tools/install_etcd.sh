#!/bin/sh
# Gives a virtual environment the etcd server of Debian or Ubuntu, as bin/etcd, for the tests and for local clusters.
# The package is unpacked, not installed: that needs no root, starts no service, and changes nothing outside the folder.
# Where there is an etcd already (in the environment, in SULINA_ETCD or on the PATH) nothing happens. Where it cannot be
# had, it says so and what to do; that is no error here, but `make test` then fails, unless it is told to do without
# (SULINA_WITHOUT=etcd).
#
#     tools/install_etcd.sh .venv
set -eu

target=$1/bin/etcd
if [ -x "$target" ] || [ -n "${SULINA_ETCD:-}" ] || command -v etcd >/dev/null 2>&1; then
    exit 0
fi

give_up() {
    echo "there is no etcd: $1" >&2
    echo "install etcd 3.4 or newer (Debian, Ubuntu: apt-get install etcd-server), or set SULINA_ETCD to its path;" >&2
    echo "until then make test fails, unless it is told SULINA_WITHOUT=etcd" >&2
    exit 0
}

for tool in apt-get dpkg-deb; do
    command -v $tool >/dev/null 2>&1 || give_up "this machine has no $tool"
done

echo "fetching etcd, once …"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/package"

fetch() { # with the options given
    (cd "$work" && apt-get --quiet=2 -o Acquire::Retries=2 -o Acquire::http::Timeout=20 -o APT::Sandbox::User=root \
        "$@" download etcd-server) >"$work/log" 2>&1
}

# The machine's own lists may be missing or too old: then with fresh ones of our own.
own="-o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache"
if ! fetch; then
    # shellcheck disable=SC2086
    apt-get --quiet=2 -o Acquire::Retries=2 -o Acquire::http::Timeout=20 -o APT::Sandbox::User=root $own update \
        >"$work/log" 2>&1 || true
    # shellcheck disable=SC2086
    fetch $own || give_up "apt-get download etcd-server failed: $(tail -n 1 "$work/log")"
fi
dpkg-deb --extract "$work"/etcd-server_*.deb "$work/package" || give_up "its package cannot be unpacked"
# Aside, then renamed: half a file is never taken for the program.
cp "$work/package/usr/bin/etcd" "$target.aside"
"$target.aside" --version >/dev/null 2>&1 || { rm -f "$target.aside"; give_up "that of the package does not run here"; }
mv "$target.aside" "$target"
