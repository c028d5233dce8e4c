#!/bin/sh
# Makes a virtual environment of its own in which Spark has Delta Lake's own jar beside our package, for `make interop`.
# The jar runs on the Spark that it was made for and on no newer one, so that environment has an older PySpark than ours.
# Where a registry is not reached it says so and ends without error: the tests that need the jar are skipped.
#
#     tools/install_delta.sh .venv .venv-interop
set -eu

uv=$1/bin/uv
target=$2
delta=4.4.0
stamp=$target/.delta-$delta
[ -e "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && exit 0

give_up() {
    echo "Delta Lake's own jar cannot be had: $1" >&2
    echo "the tests that need it are skipped" >&2
    exit 0
}

echo "installing Delta Lake's own jar into $target, once …"
mkdir -p "$target"
log=$target/install.log
[ -x "$target/bin/python" ] || "$uv" venv --quiet --allow-existing --python "$1/bin/python" "$target" >"$log" 2>&1 || give_up "$(tail -n 1 "$log")"
"$uv" pip install --quiet --python "$target/bin/python" -e '.[spark]' "delta-spark==$delta" hypothesis pytest pytest-asyncio pytest-timeout pytest-xdist \
    >"$log" 2>&1 || give_up "$(tail -n 1 "$log")"
# Spark fetches the jar and what it needs, once, into the environment.
"$target/bin/python" - "$(pwd)/$target/ivy" >"$log" 2>&1 <<'PYTHON' || give_up "$(tail -n 1 "$log")"
import sys
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
configure_spark_with_delta_pip(builder.config("spark.jars.ivy", sys.argv[1])).getOrCreate().stop()
PYTHON
touch "$stamp"
