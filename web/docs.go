package web

import (
	"bytes"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"

	"github.com/caretaker-go/caretaker/docs"
	links "github.com/caretaker-go/caretaker/internal/docs"
)

// Pages of the documentation that other pages link to.
const (
	docsIndex           = "/docs/README.md"
	docsTroubleshooting = "/docs/operate/troubleshooting.md"
)

// documentation serves a page of the documentation of this version, without access to the internet.
// It omits the raw HTML of the page.
func (p *pages) documentation(w http.ResponseWriter, r *http.Request) {
	name := path.Clean(r.PathValue("path"))
	source, err := docs.Pages.ReadFile(name)
	switch path.Ext(name) {
	case ".svg":
		if err == nil {
			w.Header().Set("Content-Type", "image/svg+xml")
			_, _ = w.Write(source)
			return
		}
	case ".md":
	default:
		err = fs.ErrNotExist
	}
	if err != nil {
		p.renderError(w, r, http.StatusNotFound, "Page not found.")
		return
	}
	markdown := goldmark.New(goldmark.WithExtensions(extension.Table),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	tree := markdown.Parser().Parse(text.NewReader(source))
	_ = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if link, ok := n.(*ast.Link); ok && entering {
			link.Destination = []byte(served(path.Dir(name), string(link.Destination)))
		}
		return ast.WalkContinue, nil
	})
	var out bytes.Buffer
	if err := markdown.Renderer().Render(&out, source, tree); err != nil {
		p.fail(w, r, err)
		return
	}
	title, _, _ := strings.Cut(strings.TrimPrefix(string(source), "# "), "\n")
	p.write(w, r, http.StatusOK, "docs", frame{
		Title: title + " · caretaker", Fixed: true,
		Body: template.HTML(out.String()), //nolint:gosec // our own page, with raw HTML omitted
	})
}

// served returns the address of a link on a page in a folder. Files that are not served are in the
// repository.
func served(folder, link string) string {
	u, err := url.Parse(link)
	if err != nil || u.IsAbs() || u.Path == "" {
		return link
	}
	file := path.Join(folder, u.Path)
	if info, err := fs.Stat(docs.Pages, file); err == nil && !info.IsDir() {
		u.Path = "/docs/" + file
		return u.String()
	}
	return links.URL(file)
}
