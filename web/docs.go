package web

import (
	"cmp"
	"errors"
	"io/fs"
	"net/http"
	"path"

	"github.com/caretaker-go/caretaker/docs"
)

// documentation serves a page or a chart of this version's documentation, without internet access.
func (p *pages) documentation(w http.ResponseWriter, r *http.Request) {
	name := path.Clean(cmp.Or(r.PathValue("path"), "README.md"))
	if path.Ext(name) == ".svg" {
		http.ServeFileFS(w, r, docs.Pages, name) //nolint:gosec // files of the binary alone
		return
	}
	title, body, err := docs.HTML(name, "/docs")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.renderError(w, r, http.StatusNotFound, "Page not found: "+r.URL.Path+".")
	case err != nil:
		p.fail(w, r, err)
	default:
		p.write(w, r, http.StatusOK, "docs", frame{Title: title + " · caretaker", Fixed: true, Body: body})
	}
}
