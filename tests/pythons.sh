#!/usr/bin/env bash
# Config, planning, tables, analyses and figures on the other versions of Python that are installed, without torch,
# which takes long to install. A version that is missing, or whose packages cannot be installed, is skipped and says so.
set -uo pipefail
cd "$(dirname "$0")/.."
own=$("$BIN/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
tests="config_loading config_sections config_reference fingerprint preflight summaries bootstrap"

# A command named python3.x may be a shim without that version behind it, so each candidate is asked.
interpreter() {
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null)" = "$1" ]; then
            echo "$candidate"
            return
        fi
    done
}

failed=0
for version in 3.11 3.12 3.13; do
    [ "$version" = "$own" ] && continue
    python=$(interpreter "$version")
    if [ -z "$python" ]; then
        echo "Python $version: skipped, it is not installed"
        continue
    fi
    folder="$BIN/../pythons/$version"
    if ! { "$python" -m venv "$folder" && grep -Ev '^(torch|datasets|ruff|snakefmt)==' requirements.txt > "$folder/requirements.txt" \
        && timeout 150 "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -r "$folder/requirements.txt"; } \
        2> /dev/null; then
        echo "Python $version: skipped, its packages cannot be installed"
        continue
    fi
    echo "Python $version"
    # conftest.py imports torch
    # shellcheck disable=SC2086
    PYTHONPATH=src "$folder/bin/python" -m pytest -q -n 2 --noconftest $(printf 'tests/unit/test_%s.py ' $tests) || failed=1
    PYTHONPATH=src "$folder/bin/python" -m snakemake -n --quiet all --config preset=tiny run=pythons > /dev/null || failed=1
done
exit "$failed"
