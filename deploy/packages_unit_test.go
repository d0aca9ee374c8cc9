//go:build packages

package deploy_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// The unit may be exposed to 1.2 of 10, as docs/install.md says.
func TestUnit_IsValidAndHardlyExposed(t *testing.T) {
	t.Parallel()
	const unit, units = "packages/caretaker.service", "usr/lib/systemd/system/"
	out := output(t, "systemd-analyze", "security", "--offline=true", "--threshold=12", unit)
	want(t, out, "Overall exposure level for caretaker.service: 1.2 OK")
	want(t, read(t, "../docs/install.md"), "Overall exposure level for caretaker.service: 1.2 OK")

	root := t.TempDir()
	files := map[string]string{"usr/bin/caretaker": "#!/bin/sh\n", "bin/sh": "", units + "caretaker.service": read(t, unit)}
	// What every unit depends on by itself.
	for _, name := range []string{"sysinit", "basic", "shutdown", "network-online"} {
		files[units+name+".target"] = "[Unit]\n"
	}
	files[units+"system.slice"], files[units+"-.mount"] = "[Slice]\n", "[Mount]\nWhat=/dev/sda\nWhere=/\n"
	for path, content := range files {
		assert.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o750))
		assert.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(content), 0o600))
	}
	for _, program := range []string{"usr/bin/caretaker", "bin/sh"} {
		assert.NoError(t, os.Chmod(filepath.Join(root, program), 0o700))
	}
	if out := output(t, "systemd-analyze", "verify", "--man=no", "--root="+root, "caretaker.service"); out != "" {
		t.Error(out)
	}
}

// An rpm is for machines that have no Debian: what can be tried here is the file and its scripts.
func TestRPM_HasTheFilesAndInstallsUpgradesAndGoes(t *testing.T) {
	t.Parallel()
	first, later := built.folders(t)
	old, young := file(t, first, ".rpm"), file(t, later, ".rpm")
	want(t, output(t, "rpm", "-K", "--nosignature", old), "digests OK")
	want(t, output(t, "rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEMODES:perms} %{FILEGROUPNAME} %{FILEFLAGS:fflags}\n]", old),
		"/usr/bin/caretaker -rwxr-xr-x root", "/usr/lib/systemd/system/caretaker.service -rw-r--r-- root",
		"/etc/caretaker/caretaker.env -rw-r----- caretaker cn", "/etc/caretaker/caretaker.yml -rw-r--r-- root cn",
		"/usr/share/man/man1/caretaker.1.gz", "/usr/share/zsh/site-functions/_caretaker")

	m := debian(t)
	rpm := func(args ...string) string {
		return output(t, append([]string{"rpm", "--root", m.root}, args...)...)
	}
	want(t, rpm("-i", "--nodeps", "--nosignature", old), "does not run yet")
	want(t, m.run("stat -c '%A %U %G' /etc/caretaker/caretaker.env; getent passwd caretaker"),
		"-rw-r----- root caretaker", ":/nonexistent:/sbin/nologin")
	const edited = "log: {level: debug}\n"
	m.write("/etc/caretaker/caretaker.yml", edited, 0o644)
	calls := m.pretendSystemd()
	rpm("-U", "--nodeps", "--nosignature", young)
	want(t, calls(), "systemctl try-restart caretaker.service")
	want(t, rpm("-q", "caretaker"), newer)
	if got := m.run("cat /etc/caretaker/caretaker.yml"); got != edited {
		t.Errorf("the upgrade changed the configuration to %s", got)
	}
	rpm("-e", "caretaker")
	want(t, calls(), "systemctl stop caretaker.service", "systemctl --quiet disable caretaker.service")
	m.wantFile("/usr/bin/caretaker", false)
}
