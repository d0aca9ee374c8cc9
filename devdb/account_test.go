package devdb

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// other is the server's user when it is not ours.
func other() account { return account{name: "other", uid: 54321, gid: 54321, switched: true} }

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info := assert.Must(os.Stat(path))(t)
	return info.Mode().Perm()
}

func TestAccount_PrivateTemporaryFoldersAreOpenedForPassingThrough(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	private := filepath.Join(base, "private")
	assert.NoError(t, os.MkdirAll(private, 0o700))
	assert.NoError(t, other().reaches(filepath.Join(private, "not", "yet", "there")))
	assert.Equal(t, mode(t, private), 0o711, "mode")
}

func TestAccount_ClosedFolderElsewhereIsNamedAndLeftAlone(t *testing.T) {
	home := t.TempDir()
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "elsewhere"))
	dir := filepath.Join(home, "data")
	assert.NoError(t, os.Mkdir(dir, 0o700))
	assert.NoError(t, os.Chmod(home, 0o700))
	err := other().reaches(dir)
	if err == nil || !strings.Contains(err.Error(), "user other cannot access "+home) || !strings.Contains(err.Error(), "choose another data directory") {
		t.Errorf("error %v", err)
	}
	if mode(t, home) != 0o700 || mode(t, dir) != 0o700 {
		t.Errorf("modes %o, %o", mode(t, home), mode(t, dir))
	}
}

func TestAccount_OwnUserNeedsNoWay(t *testing.T) {
	t.Parallel()
	private := t.TempDir()
	assert.NoError(t, os.Chmod(private, 0o700))
	assert.NoError(t, (account{name: "me", uid: os.Geteuid(), gid: os.Getegid()}).reaches(private))
	assert.Equal(t, mode(t, private), 0o700, "mode")
}
