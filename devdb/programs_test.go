package devdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// install makes a folder with fake server programs of a version.
func install(t *testing.T, dir, version string) string {
	t.Helper()
	assert.NoError(t, os.MkdirAll(dir, 0o755))
	script := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s (Test)'\n", version)
	for _, name := range []string{"postgres", "initdb"} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	return dir
}

func TestPrograms_PathComesFirstThenTheHighestVersion(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	onPath := install(t, filepath.Join(base, "path"), "15.2")
	install(t, filepath.Join(base, "9.6", "bin"), "9.6.24")
	newest := install(t, filepath.Join(base, "17", "bin"), "17.1")
	install(t, filepath.Join(base, "16", "bin"), "16.9")
	patterns := []string{filepath.Join(base, "*", "bin")}
	for path, want := range map[string]programs{
		onPath + ":/nowhere":           {dir: onPath, version: 15},
		"":                             {dir: newest, version: 17},
		filepath.Join(base, "9.6"):     {dir: newest, version: 17}, // no programs there
		filepath.Join(base, "9.6/bin"): {dir: newest, version: 17}, // too old
	} {
		if got, err := find(t.Context(), path, patterns, 0); err != nil || got != want {
			t.Errorf("PATH %q: %v, %v", path, got, err)
		}
	}
	if got, err := find(t.Context(), onPath, patterns, 16); err != nil || got.version != 16 {
		t.Errorf("for a folder of version 16: %v, %v", got, err)
	}
}

func TestPrograms_LinksAreFollowed(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	actual := install(t, filepath.Join(base, "real"), "18.0")
	links := filepath.Join(base, "links")
	assert.NoError(t, errors.Join(os.Mkdir(links, 0o755), os.Symlink(filepath.Join(actual, "postgres"), filepath.Join(links, "postgres"))))
	if got, err := find(t.Context(), links, nil, 0); err != nil || got.dir != actual {
		t.Errorf("%v, %v", got, err)
	}
}

func TestPrograms_ErrorSaysWhatWasFoundAndWhatIsNeeded(t *testing.T) {
	t.Parallel()
	old := install(t, t.TempDir(), "13.9")
	_, err := find(t.Context(), old, nil, 0)
	if !errors.Is(err, errNoPrograms) || !strings.Contains(err.Error(), old+" has version 13") || !strings.Contains(err.Error(), "version 14 or later") {
		t.Errorf("error %v", err)
	}
	_, err = find(t.Context(), old, nil, 16)
	assert.That(t, errors.Is(err, errNoPrograms) && strings.Contains(err.Error(), "requires version 16"), "error %v", err)
	if _, err = find(t.Context(), "", nil, 0); !errors.Is(err, errNoPrograms) {
		t.Errorf("error %v", err)
	}
	odd := install(t, t.TempDir(), "seventeen")
	if _, err = find(t.Context(), odd, nil, 0); err == nil || !strings.Contains(err.Error(), "seventeen") {
		t.Errorf("error %v", err)
	}
}
