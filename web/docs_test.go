package web

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestDocumentation_OfThisVersionIsServed(t *testing.T) {
	f := start(assert.Parallel(t))
	f.page("/docs/", "<h1")
	body := f.page("/docs/operate/troubleshooting.md", "<h1", "<table>", `href="/docs/README.md"`)
	for _, raw := range []string{"<!-- test", "<script>", "style="} {
		assert.Lacks(t, body, raw)
	}
	answer, _ := f.request(http.MethodGet, "/docs/images/scale-backlog.svg")
	assert.That(t, answer.StatusCode == http.StatusOK && answer.Header.Get("Content-Type") == "image/svg+xml", "%v", answer)
	for _, path := range []string{"/docs/nothing.md", "/docs/operate", "/docs/pages.go", "/docs/..%2fgo.mod", "/docs/contributing/testing.md"} {
		answer, _ := f.request(http.MethodGet, path)
		assert.Equal(t, answer.StatusCode, http.StatusNotFound, path)
	}
	// Every link leads to a page here or to the repository.
	for _, page := range []string{"README.md", "operate/runbook.md", "performance.md", "guides/security.md"} {
		for _, part := range strings.Split(f.page("/docs/"+page), `href="`)[1:] {
			link, _, _ := strings.Cut(part, `"`)
			link, _, _ = strings.Cut(link, "#")
			if strings.HasPrefix(link, "/docs/") {
				f.page(link)
			}
		}
	}
}
