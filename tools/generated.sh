#!/bin/sh
# Fails if "make generate" would change the generated files.
# It compares the working tree with itself, so that it also checks uncommitted work.
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
	echo "generated files were outdated. They are updated now: review and commit them:" >&2
	git --no-pager status --short -- gen docs deploy NOTICE >&2
	exit 1
fi
echo "generated files are up to date"
