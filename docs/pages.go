// Package docs has the documentation for users, as Markdown, and its charts.
package docs

import "embed"

// Pages are the pages by their paths below docs. The pages for contributors are not among them.
//
//go:embed README.md performance.md images/*.svg
//go:embed getting-started guides operate reference concepts
var Pages embed.FS
