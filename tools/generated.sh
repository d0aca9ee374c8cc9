#!/bin/sh
# Fails when the generated files are not what "make generate" makes of their sources.
# Compares the working tree with itself, so that uncommitted work can be checked too.
set -eu
cd "$(dirname "$0")/.."

fingerprint() {
	find gen docs deploy NOTICE -type f 2>/dev/null | LC_ALL=C sort | while IFS= read -r file; do
		cksum "$file"
	done
}

before=$(fingerprint)
"${MAKE:-make}" --no-print-directory generate
after=$(fingerprint)

if [ "$before" != "$after" ]; then
	echo "generated files were out of date; they are fresh now, review and commit them:" >&2
	git --no-pager status --short -- gen docs deploy NOTICE >&2
	exit 1
fi
echo "generated files are up to date"
