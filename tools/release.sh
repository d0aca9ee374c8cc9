#!/bin/sh
# release.sh [PLATFORM...]: builds a release of the last commit into OUT (dist). Without platforms it
# builds all four (linux/amd64, …). Each has an archive and a bill of materials, and Linux also a .deb
# and an .rpm. SHA256SUMS has the checksums. The same commit makes the same files.
# NUMBER gives the files another number than that of the last tag. The program keeps its own.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
out=${OUT:-dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)

fail() {
	echo "release: $*" >&2
	exit 1
}

# step reports what is built next.
step() {
	echo "release: $*"
}

tar=$(command -v gtar || command -v tar)
"$tar" --version | grep -q GNU || fail "GNU tar is required, for reproducible archives: brew install gnu-tar"

# The commit is built in a clone, without uncommitted changes.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
commit=$(git rev-parse HEAD)
mkdir "$work/source"
cp -R "$(git rev-parse --git-common-dir)" "$work/source/.git"
cd "$work/source"
git -c core.bare=false checkout --quiet --force --detach "$commit"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
# The Go of go.mod, without flags of the environment.
GOTOOLCHAIN=go$(go list -m -f '{{.GoVersion}}')
GOFLAGS=-buildvcs=true
CGO_ENABLED=0
export SOURCE_DATE_EPOCH GOTOOLCHAIN GOFLAGS CGO_ENABLED

build() {
	go build -trimpath -ldflags='-s -w' -o "$1" .
}

# Files for all platforms are made once, by the program of this one.
shared=$work/shared
mkdir -p "$shared/completions"
step "commit $commit"
step "program for this machine"
build "$work/native"
version=$("$work/native" --version | sed 's/^caretaker version v\{0,1\}//')
number=${NUMBER:-$version}
case $number in
[0-9]*) ;;
*) fail "the program has no version, but $number: install git" ;;
esac
step "version $number, for $*"
step "licences, manual pages, completions and documentation"
(cd tools/dependencies && GOFLAGS='' go build -o "$work/dependencies" .)
go build -modfile=tools/release/go.mod -o "$work/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm
"$work/dependencies" licences . >"$shared/LICENSES.txt"
go run ./tools/manpages "$shared/man/man1" "$SOURCE_DATE_EPOCH"
gzip -9n "$shared"/man/man1/*
"$work/native" completion bash >"$shared/completions/caretaker.bash"
"$work/native" completion zsh >"$shared/completions/_caretaker"
"$work/native" completion fish >"$shared/completions/caretaker.fish"
cp LICENSE NOTICE CHANGELOG.md deploy/packages/caretaker.* "$shared"
mkdir "$shared/prometheus"
cp deploy/prometheus/alerts.yml deploy/prometheus/alerts-loose-foreign-keys.yml deploy/prometheus/rules.yml \
	"$shared/prometheus"
cp -R deploy/grafana docs "$shared"
# The pages for contributors stay in the repository. Links to them and to other files of the
# repository become addresses, in the version of the program.
rm -r "$shared"/docs/contributing "$shared"/docs/*_test.go
blob=https://github.com/caretaker-go/caretaker/blob/main
case $version in
*[-+]*) ;;
*) blob=${blob%main}v$version ;;
esac
find "$shared/docs" -name '*.md' | while read -r page; do
	sed -e "s,](\(\.\./\)*\(contributing/[^)]*\)),]($blob/docs/\2),g" \
		-e "s,](\(\.\./\)*\(deploy/[^)]*\)),]($blob/\2),g" \
		-e "s,](\(\.\./\)*\(C[A-Z]*\.md\)),]($blob/\2),g" "$page" >"$page.new"
	mv "$page.new" "$page"
done
find "$shared" -type f -exec chmod 644 {} +
find "$shared" -type d -exec chmod 755 {} +

# packages writes the .deb and the .rpm of an architecture, from the folder with what is packed.
packages() {
	cp -R deploy/packages "$1"
	gzip -9nc CHANGELOG.md >"$1/packages/changelog.gz"
	for packager in deb rpm; do
		(cd "$1" && NUMBER=$number ARCHITECTURE=$2 "$work/nfpm" package --config packages/nfpm.yml \
			--packager $packager --target "$out" >/dev/null)
	done
	rm -rf "$1/packages"
}

for platform in "$@"; do
	GOOS=${platform%/*} GOARCH=${platform#*/}
	name=caretaker_${number}_${GOOS}_$GOARCH
	step "$name: program"
	cp -R "$shared" "$work/$name"
	(export GOOS GOARCH && build "$work/$name/caretaker")
	chmod 755 "$work/$name/caretaker"
	step "$name: archive and bill of materials"
	(cd "$work" && "$tar" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
		-cf - "$name" | gzip -9n >"$out/$name.tar.gz")
	"$work/dependencies" sbom . "$work/$name/caretaker" >"$out/$name.cdx.json"
	if [ "$GOOS" = linux ]; then
		step "$name: .deb and .rpm"
		packages "$work/$name" "$GOARCH"
	fi
	rm -rf "${work:?}/$name"
done
cd "$out"
sums=sha256sum
command -v $sums >/dev/null || sums='shasum -a 256'
step "checksums"
LC_ALL=C
export LC_ALL
$sums ./*.tar.gz ./*.cdx.json $(ls ./*.deb ./*.rpm 2>/dev/null) | sed 's, \./, ,' >SHA256SUMS
step "done: $out"
