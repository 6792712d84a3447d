#!/usr/bin/env bash
# The other versions of Python that are installed: config, planning, tables, analyses and figures, without torch, which
# takes long to install; under Python 3.12 then model, training and exits with the oldest torch of pyproject.toml. A
# version that is missing, or whose packages cannot be installed, is skipped and says so.
set -uo pipefail
cd "$(dirname "$0")/.."
own=$("$BIN/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
version_of_torch=3.12
shopt -s nullglob
without_torch=(tests/unit/test_{bootstrap,config_loading,config_reference,config_sections,fingerprint,machine}.py
    tests/unit/test_summaries.py)
with_torch=(tests/unit/test_{attention,checkpoints,compile,contract,fake_cuda*,linear,loss,model}.py
    tests/unit/test_{rms_norm,training,trajectories}.py tests/studies/spectrum/test_spectrum.py)

# A command named python3.x may be a shim without that version behind it, so each candidate is asked.
interpreter() {
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null)" = "$1" ]; then
            echo "$candidate"
            return
        fi
    done
}

run_tests() {
    PYTHONPATH=src "$folder/bin/python" -m pytest -q -n 2 "$@" || failed=1
}

failed=0
for version in 3.11 3.12 3.13; do
    [ "$version" = "$own" ] && [ "$version" != "$version_of_torch" ] && continue
    python=$(interpreter "$version")
    if [ -z "$python" ]; then
        echo "Python $version: skipped, it is not installed"
        continue
    fi
    folder="$BIN/../pythons/$version"
    if ! { "$python" -m venv "$folder" && grep -Ev '^(torch|datasets|ruff|snakefmt)==' requirements.txt > "$folder/requirements.txt" \
        && timeout 600 "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -r "$folder/requirements.txt"; } \
        2> /dev/null; then
        echo "Python $version: skipped, its packages cannot be installed"
        continue
    fi
    echo "Python $version"
    run_tests --noconftest "${without_torch[@]}"  # conftest.py imports torch
    PYTHONPATH=src "$folder/bin/python" -m snakemake -n --quiet all --config preset=tiny run=pythons > /dev/null || failed=1
    [ "$version" = "$version_of_torch" ] || continue
    if ! reason=$(timeout 300 "$folder/bin/python" tests/cpu_torch.py 2>&1); then
        echo "Python $version with the oldest torch: skipped, it cannot be installed: ${reason##*$'\n'}"
        continue
    fi
    echo "Python $version with $("$folder/bin/python" -c 'import torch; print("torch", torch.__version__)')"
    run_tests "${with_torch[@]}"
done
exit "$failed"
