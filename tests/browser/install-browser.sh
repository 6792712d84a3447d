#!/usr/bin/env bash
# A Chromium for the tests: nothing to do where there is one; else Playwright's own, else Debian's package (root).
#
#   install-browser.sh PYTHON     PYTHON has the package playwright
#
# Exit status 77: there is no browser here and none can be installed. The tests are then skipped with their reason.
set -uo pipefail
PYTHON=${1:?interpreter with the package playwright}

for program in chromium chromium-browser google-chrome google-chrome-stable; do
  command -v "$program" >/dev/null && exit 0
done
"$PYTHON" -m playwright install chromium && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium && exit 0
fi
echo "no browser for the tests: neither Playwright nor apt-get could install one" >&2
exit 77
