package devdb

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// other is the server's user when it is not ours.
func other() account { return account{name: "other", uid: 54321, gid: 54321, switched: true} }

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info := must(os.Stat(path))(t)
	return info.Mode().Perm()
}

func TestAccount_PrivateTemporaryFoldersAreOpenedForPassingThrough(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	private := filepath.Join(base, "private")
	noError(t, os.MkdirAll(private, 0o700))
	noError(t, other().reaches(filepath.Join(private, "not", "yet", "there")))
	equal(t, mode(t, private), 0o711, "mode")
}

func TestAccount_ClosedFolderElsewhereIsNamedAndLeftAlone(t *testing.T) {
	home := t.TempDir()
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "elsewhere"))
	dir := filepath.Join(home, "data")
	noError(t, os.Mkdir(dir, 0o700))
	noError(t, os.Chmod(home, 0o700))
	err := other().reaches(dir)
	if err == nil || !strings.Contains(err.Error(), "user other cannot enter "+home) || !strings.Contains(err.Error(), "choose another data folder") {
		t.Errorf("error %v", err)
	}
	if mode(t, home) != 0o700 || mode(t, dir) != 0o700 {
		t.Errorf("modes %o, %o", mode(t, home), mode(t, dir))
	}
}

func TestAccount_OwnUserNeedsNoWay(t *testing.T) {
	t.Parallel()
	private := t.TempDir()
	noError(t, os.Chmod(private, 0o700))
	noError(t, (account{name: "me", uid: os.Geteuid(), gid: os.Getegid()}).reaches(private))
	equal(t, mode(t, private), 0o700, "mode")
}
