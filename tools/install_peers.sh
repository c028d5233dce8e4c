#!/bin/sh
# Gives a virtual environment the servers that the benchmark of publish/subscribe compares with: those of NATS and Redis, of
# Debian or Ubuntu, as bin/nats-server and bin/redis-server. The packages are unpacked, not installed: that needs no root,
# starts no service, and changes nothing outside the folder. One that is there already (in the environment, on the PATH
# or in /usr/sbin) is left alone. Where one cannot be had, it says so and what to do; that is no error, the benchmark goes
# on without that peer.
#
#     tools/install_peers.sh .venv
set -eu

bin=$1/bin
peers=$(cd "$1" && pwd)/lib/peers
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"

missing() { # what, why
    echo "there is no $1: $2" >&2
    echo "install it (Debian, Ubuntu: apt-get install $1); until then, the benchmark goes on without it" >&2
}

apt() {
    (cd "$work" && apt-get --quiet=2 -o Acquire::Retries=2 -o Acquire::http::Timeout=20 -o APT::Sandbox::User=root "$@") \
        >"$work/log" 2>&1
}

download() { # a package; with the machine's own lists, or, where they are missing or too old, with fresh ones of our own
    own="-o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache"
    apt download "$1" && return
    # shellcheck disable=SC2086
    [ -e "$work/is-fresh" ] || { apt $own update || true; touch "$work/is-fresh"; }
    # shellcheck disable=SC2086
    apt $own download "$1"
}

get() { # the server, the file of it, and the packages: its own, then those of libraries that few machines have
    server=$1 file=$2
    shift 2
    if [ -x "$bin/$server" ] || [ -x "/usr/sbin/$server" ] || command -v "$server" >/dev/null 2>&1; then
        return
    fi
    for tool in apt-get dpkg-deb; do
        command -v $tool >/dev/null 2>&1 || { missing "$server" "this machine has no $tool"; return; }
    done
    echo "fetching $server, once …"
    for package; do
        download "$package" || { missing "$server" "apt-get download $package failed: $(tail -n 1 "$work/log")"; return; }
        dpkg-deb --extract "$work/$package"_*.deb "$work/$server" || { missing "$server" "$package cannot be unpacked"; return; }
    done
    own=$peers/$server
    rm -rf "$own"
    mkdir -p "$own"
    cp "$work/$server/$file" "$own/$server"
    find "$work/$server" -name 'lib*.so*' -exec cp -P {} "$own" \;
    # Aside, then renamed: half a file is never taken for the program.
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$own" "$own/$server" >"$bin/$server.aside"
    chmod +x "$bin/$server.aside"
    if ! "$bin/$server.aside" --version >"$work/log" 2>&1; then
        rm -rf "$bin/$server.aside" "$own"
        missing "$server" "that of the package does not run here: $(tail -n 1 "$work/log")"
        return
    fi
    mv "$bin/$server.aside" "$bin/$server"
}

get nats-server usr/sbin/nats-server nats-server
# Redis is one program under several names; which one it is called by says what it does.
get redis-server usr/bin/redis-check-rdb redis-tools libatomic1 libjemalloc2 liblzf1
