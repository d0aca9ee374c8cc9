// Package docs has the addresses of the documentation's pages.
package docs

import (
	"runtime/debug"
	"strings"
)

// Repository is the address of the source, without a version.
const Repository = "https://github.com/caretaker-go/caretaker"

// URL returns the address of a page below docs, such as "guides/security.md". A release has the
// pages of its tag, any other build those of main.
func URL(page string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return url(info.Main.Version, page)
	}
	return url("", page)
}

// url returns the address of a page for the version of a build. Only a tag has no hyphen or plus
// sign: "v1.2.3", but "v1.2.4-0.20261127180446-7ad165830000+dirty".
func url(version, page string) string {
	if !strings.HasPrefix(version, "v") || strings.ContainsAny(version, "-+") {
		version = "main"
	}
	return Repository + "/blob/" + version + "/docs/" + page
}
