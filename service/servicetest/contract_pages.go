package servicetest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/service"
)

// documented searches for the worker's page, the link from there to its settings, and each of them
// there.
func (c *contract) documented() {
	page, settings := c.document("workers/"+c.Worker+".md"), c.document("configuration.md")
	if !strings.Contains(page, "configuration.md#"+c.Worker) {
		c.t.Errorf("docs/reference/workers/%s.md has no link to configuration.md#%[1]s", c.Worker)
	}
	_, section, _ := strings.Cut(settings, "\n## "+c.Worker+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, k := range config.Keys(new(service.Config)) {
		name, is := strings.CutPrefix(k.Path, "workers."+c.Worker+".")
		if is && !regexp.MustCompile("(?m)^\\| `"+name+"` \\|.*\\| [^|]+ \\|$").MatchString(section) {
			c.t.Errorf("docs/reference/configuration.md does not describe %s: run make generate", k.Path)
		}
	}
}

// document reads a page of the reference.
func (c *contract) document(name string) string {
	c.t.Helper()
	root, err := devdb.SourceRoot()
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "reference", name))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}
