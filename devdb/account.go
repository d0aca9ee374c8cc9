package devdb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is the operating system user that the server runs as. PostgreSQL refuses to run as root,
// so root switches to another user.
type account struct {
	name     string
	uid, gid int
	switched bool // not the user of this process
}

// serverAccount returns the current user, or for root the first existing user of postgres and
// "nobody".
func serverAccount() (account, error) {
	if uid := os.Geteuid(); uid != 0 {
		return account{name: strconv.Itoa(uid), uid: uid, gid: os.Getegid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(found.Uid)
		gid, gidErr := strconv.Atoi(found.Gid)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return account{name: name, uid: uid, gid: gid, switched: true}, nil
		}
	}
	return account{}, errors.New("PostgreSQL cannot run as root, and this machine has no user postgres or nobody: run caretaker as another user")
}

// attr starts a program as the account, in a process group of its own. So Ctrl-C reaches us alone,
// and the server is shut down in order.
func (a account) attr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.switched {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// own changes the owner of a file or folder to the account.
func (a account) own(path string) error {
	if !a.switched {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// reaches checks that the account can enter the folder and all those above it,
// as far as they exist. The folder itself, and our own folders below the
// system's temporary one, are opened for passing through where that is missing.
func (a account) reaches(dir string) error {
	if !a.switched {
		return nil
	}
	temp := filepath.Clean(os.TempDir()) + string(filepath.Separator)
	closed := map[string]fs.FileMode{}
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && !a.enters(info) {
			if at != dir && !strings.HasPrefix(at, temp) {
				return fmt.Errorf("PostgreSQL cannot run as root, and the user %s cannot access %s (mode %04o): choose another data directory with --data-dir, such as /var/lib/caretaker/dev",
					a.name, at, info.Mode().Perm())
			}
			closed[at] = info.Mode().Perm()
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	for at, mode := range closed {
		if err := os.Chmod(at, mode|0o011); err != nil {
			return err
		}
	}
	return nil
}

func (a account) enters(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	switch mode := info.Mode().Perm(); {
	case int(stat.Uid) == a.uid:
		return mode&0o100 != 0
	case int(stat.Gid) == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}
