package docs_test

import (
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/docs"
	"github.com/caretaker-go/caretaker/internal/assert"
)

var (
	servedID   = regexp.MustCompile(`<h[1-6] id="([^"]+)"`)
	servedLink = regexp.MustCompile(`href="(?:/docs/([^"#]+\.md))?#([^"]+)"`)
)

func TestPages_ServedLinksLeadToHeadings(t *testing.T) {
	pages := map[string]string{}
	err := fs.WalkDir(docs.Pages, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".md" {
			return err
		}
		_, body, err := docs.HTML(name, "/docs")
		pages[name] = string(body)
		return err
	})
	assert.NoError(t, err)
	ids, links := map[string]bool{}, 0
	for name, body := range pages {
		for _, id := range servedID.FindAllStringSubmatch(body, -1) {
			ids[name+"#"+id[1]] = true
		}
	}
	for name, body := range pages {
		for _, link := range servedLink.FindAllStringSubmatch(body, -1) {
			to := link[1]
			if to == "" {
				to = name
			}
			links++
			assert.That(t, ids[to+"#"+link[2]], "%s links to %s#%s, which is no heading", name, to, link[2])
		}
	}
	assert.That(t, links > 100 && ids["reference/configuration.md#ghost_user_migration"] && !strings.Contains(pages["README.md"], "```"),
		"%d links with an anchor", links)
}
