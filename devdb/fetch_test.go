package devdb

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// repository serves an archive as the real one does: testdata/programs.txz, a
// tar of shell scripts that know their version, in a zip.
func repository(t *testing.T) *httptest.Server {
	t.Helper()
	programs := assert.Must(os.ReadFile("testdata/programs.txz"))(t)
	var archive bytes.Buffer
	zipped := zip.NewWriter(&archive)
	file := assert.Must(zipped.Create("postgres.txz"))(t)
	assert.Must(file.Write(programs))(t)
	assert.NoError(t, zipped.Close())
	sum := sha256.Sum256(archive.Bytes())
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:])))
			return
		}
		_, _ = w.Write(archive.Bytes())
	}))
}

// closeAll ends the connections that the downloading library keeps open.
func closeAll(server *httptest.Server) {
	http.DefaultClient.CloseIdleConnections()
	server.Close()
}

func TestFetch_UnpacksTheProgramsAndLeavesNothingElse(t *testing.T) {
	server := repository(t)
	defer closeAll(server)
	cache := t.TempDir()
	into := filepath.Join(cache, "postgresql")
	for range 2 { // the second replaces the first
		assert.NoError(t, fetch(t.Context(), into, server.URL))
	}
	found, err := find(t.Context(), filepath.Join(into, "bin"), nil, 0)
	assert.That(t, err == nil && found.version == 17, "%v, %v", found, err)
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) != 1 {
		t.Errorf("in the cache: %q", left)
	}
}

func TestFetch_FailureLeavesNothing(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer closeAll(server)
	cache := t.TempDir()
	if err := fetch(t.Context(), filepath.Join(cache, "postgresql"), server.URL); err == nil || !strings.Contains(err.Error(), string(downloaded)) {
		t.Errorf("error %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) != 0 {
		t.Errorf("in the cache: %q", left)
	}
}
