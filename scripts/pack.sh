#!/bin/sh
# On a machine with a GPU and without a network, in a checkout of the pack's commit (docs/gpu.md):
#   gpu-pack/pack.sh run [--minutes 12.5] [--device cpu] [--wait] | status | collect
# It installs the pack's wheels into the pack, once, and needs nothing else but the packages of PYTHON (python3).
set -eu
pack=$(cd "$(dirname "$0")" && pwd)
cd "$pack/.."
python=${PYTHON:-python3}
if [ ! -e "$pack/site" ]; then
    rm -rf "$pack/site.part"
    "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-index --no-deps --no-compile \
        --target "$pack/site.part" "$pack"/wheels/*.whl
    mv "$pack/site.part" "$pack/site"
fi
# jobs call `python`: a wrapper, because through a link the Python of a virtual environment would not find its packages
mkdir -p "$pack/bin"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$("$python" -c 'import sys; print(sys.executable)')" > "$pack/bin/python.$$"
chmod +x "$pack/bin/python.$$"
mv "$pack/bin/python.$$" "$pack/bin/python"
export PATH="$pack/bin:$PATH"
PYTHONPATH="$PWD/src:$pack/site${PYTHONPATH:+:$PYTHONPATH}" exec "$python" scripts/gpu_pack.py --folder "$pack" "$@"
