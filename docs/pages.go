// Package docs has the documentation for users.
package docs

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"

	links "github.com/caretaker-go/caretaker/internal/docs"
)

// Pages are the pages, as Markdown, and their charts, by their paths below docs. The pages for
// contributors are not among them.
//
//go:embed README.md performance.md images/*.svg
//go:embed getting-started guides operate reference concepts
var Pages embed.FS

// HTML renders a page. Its links lead to the pages below root, and to the repository for other
// files. It omits the raw HTML of the page. An error is one of [fs.FS].
func HTML(name, root string) (title string, body template.HTML, err error) {
	source, err := Pages.ReadFile(name)
	if err != nil || path.Ext(name) != ".md" {
		return "", "", fmt.Errorf("page %s: %w", name, fs.ErrNotExist)
	}
	markdown := goldmark.New(goldmark.WithExtensions(extension.Table),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	tree := markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(anchors{}))))
	_ = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if link, ok := n.(*ast.Link); ok && entering {
			link.Destination = []byte(address(root, path.Dir(name), string(link.Destination)))
		}
		return ast.WalkContinue, nil
	})
	var out bytes.Buffer
	if err := markdown.Renderer().Render(&out, source, tree); err != nil {
		return "", "", fmt.Errorf("page %s: %w", name, err)
	}
	title, _, _ = strings.Cut(strings.TrimPrefix(string(source), "# "), "\n")
	return title, template.HTML(out.String()), nil //nolint:gosec // our own page, with raw HTML omitted
}

// anchors are the ids of a page's headings. They follow GitHub's rule, so that a link works there
// and on the served page.
type anchors map[string]int

// Generate returns the id of a heading.
func (a anchors) Generate(heading []byte, _ ast.NodeKind) []byte {
	id := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(string(heading)))
	a[id]++
	if n := a[id]; n > 1 {
		id = fmt.Sprintf("%s-%d", id, n-1)
	}
	return []byte(id)
}

// Put adds an id that the page sets itself. No page does.
func (a anchors) Put(id []byte) { a[string(id)]++ }

// address returns the address of a link on a page in a folder.
func address(root, folder, link string) string {
	u, err := url.Parse(link)
	if err != nil || u.IsAbs() || u.Path == "" {
		return link
	}
	file := path.Join(folder, u.Path)
	if info, err := fs.Stat(Pages, file); err == nil && !info.IsDir() {
		u.Path = path.Join(root, file)
		return u.String()
	}
	return links.URL(file)
}
