package docs

import (
	"os"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestURL_HasTheTagOfAReleaseOrMain(t *testing.T) {
	t.Parallel()
	for version, ref := range map[string]string{
		"v1.2.3": "v1.2.3", "v0.0.0-20261127180446-7ad165830000": "main", "v1.2.3+dirty": "main",
		"(devel)": "main", "": "main",
	} {
		assert.Equal(t, url(version, "guides/security.md"), Repository+"/blob/"+ref+"/docs/guides/security.md", version)
	}
	assert.Contains(t, URL("README.md"), "/docs/README.md")
}

func TestRepository_IsThatOfTheModule(t *testing.T) {
	t.Parallel()
	content := assert.Must(os.ReadFile("../../go.mod"))(t)
	module, _, _ := strings.Cut(string(content), "\n")
	assert.Equal(t, "module "+strings.TrimPrefix(Repository, "https://"), module)
}
