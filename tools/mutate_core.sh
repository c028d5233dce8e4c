#!/bin/sh
# Changes the rules of src/sulina/core in one small place at a time (by mutmut), runs the tests of tests/core that reach
# the place, and prints a score for each module and every change that no test noticed. Many of those change nothing, or
# only the words of an error; the others are tests to write.
# It works on a copy in the virtual environment, so neither the tree nor git sees anything of it.
#
#     tools/mutate_core.sh .venv                 every module without Numba kernels
#     tools/mutate_core.sh .venv cursor plan     these two
set -eu

venv=$(cd "$1" && pwd)
shift
mutmut=3.8.1
site=$venv/mutmut
copy=$venv/mutate
if [ ! -e "$site/mutmut-$mutmut.dist-info" ]; then
    echo "installing mutmut, once …"
    rm -rf "$site"
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --target "$site" "mutmut==$mutmut"
fi

modules=$*
if [ -z "$modules" ]; then
    for file in src/sulina/core/*.py src/sulina/core/*/*.py; do
        case $(basename "$file" .py) in
            __init__ | kernels | columns | kernel_choice) ;; # compiled, or chooses what is compiled
            *) modules="$modules $(basename "$file" .py)" ;;
        esac
    done
fi
paths=
for module in $modules; do
    path=$(find src/sulina/core -name "$module.py")
    [ -n "$path" ] || { echo "src/sulina/core has no module $module" >&2; exit 2; }
    paths="$paths\"$path\", "
done

rm -rf "$copy"
mkdir "$copy"
cp -R src tests tools pyproject.toml "$copy"
cd "$copy"
# The same examples in every run, and no search for smaller ones: whether a test fails is all that counts. A busy machine
# fails no test: examples have no deadline, and slow ones are no reason to stop.
cat >>tests/conftest.py <<'PYTHON'

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "mutate",
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("mutate")
PYTHON
# Left out: a test whose process imports the installed package instead of the copy, and so sees no change.
cat >>pyproject.toml <<TOML

[tool.mutmut]
source_paths = ["src"]
only_mutate = [$paths]
also_copy = ["tests", "tools", "pyproject.toml"]
timeout_multiplier = 2.5
pytest_add_cli_args_test_selection = ["tests/core"]
pytest_add_cli_args = [
    "-n0",
    "--deselect", "tests/core/records/test_columns.py::test_kernels_work_where_no_cache_can_be_written",
]
TOML

# After the project's own packages, so that these are the ones tested with. A change that never ends is stopped by the
# processor time that it takes, and not by the clock, as a busy machine makes every test slow. One that only waits fails
# by the time limit of pytest.
cat >mutmut_command.py <<PYTHON
import sys

sys.path.append("$site")
from mutmut.__main__ import cli
from mutmut.workers import isolation

isolation.register_timeout = lambda pid, timeout_s: None
cli()
PYTHON
run_mutmut() {
    "$venv/bin/python" mutmut_command.py "$@"
}
run_mutmut run --max-children "$(getconf _NPROCESSORS_ONLN)" >run.log 2>&1 || { tail -n 20 run.log >&2; exit 1; }
run_mutmut results --all true >results.txt
awk -F'[.:] *' '
    { module = $4 ~ /__mutmut_/ ? $3 : $4; count[module, $NF]++; all[module]++ }
    END {
        printf "%-18s %8s %8s %8s %8s %8s\n", "module", "mutants", "killed", "survived", "timeout", "no tests"
        for (module in all) {
            printf "%-18s %8d %8d %8d %8d %8d\n", module, all[module], count[module, "killed"],
                count[module, "survived"], count[module, "timeout"], count[module, "no tests"] | "sort"
        }
    }' results.txt
# Each change that no test noticed, with the line before and after.
"$venv/bin/python" - "$site" <<'PYTHON'
import sys

sys.path.append(sys.argv[1])
from mutmut.__main__ import find_mutant, get_diff_for_mutant

for line in open("results.txt"):
    name, _, status = line.strip().rpartition(": ")
    if status != "killed":
        print(f"{name}: {status}")
        diff = get_diff_for_mutant(name, path=find_mutant(name).path).splitlines()[2:]
        print("\n".join(f"    {changed}" for changed in diff if changed.startswith(("-", "+"))))
PYTHON
