package devdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// downloaded is the version that is fetched when the system has none.
const downloaded = embeddedpostgres.V17

// programs finds the server programs on this system or, failing that, fetches
// them into a cache folder. version is the major version that is needed, 0 for
// any.
func (c *Cluster) programs(ctx context.Context, version int) (programs, error) {
	found, err := find(ctx, os.Getenv("PATH"), places(), version)
	if !errors.Is(err, errNoPrograms) {
		return found, err
	}
	cache, cacheErr := fetchedInto(c.owner)
	if cacheErr != nil {
		return programs{}, errors.Join(err, cacheErr)
	}
	fetched := filepath.Join(cache, "bin")
	if found, again := find(ctx, "", []string{fetched}, version); again == nil {
		return found, nil
	}
	_, _ = fmt.Fprintf(c.config.Log, "%v: downloading PostgreSQL %s into %s\n", err, downloaded, cache)
	if fetchErr := fetch(ctx, cache, ""); fetchErr != nil {
		return programs{}, fmt.Errorf("%w, and the download failed: %w: install the server %s", err, fetchErr,
			"(Debian: apt install postgresql; Red Hat: dnf install postgresql-server; macOS: brew install postgresql@17)")
	}
	return find(ctx, "", []string{fetched}, version)
}

// fetchedInto is the cache folder, which the server's user has to reach.
func fetchedInto(owner account) (string, error) {
	if owner.switched {
		return "/var/lib/caretaker/postgresql-" + string(downloaded), owner.reaches("/var/lib")
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "caretaker", "postgresql-"+string(downloaded)), err
}

// fetch downloads and unpacks the server programs. The library offers that only as the first half
// of its Start. The second half is made to fail, before it does anything, by a data directory that has
// nothing but a version in it. So its error means something only if the programs are missing
// afterwards.
func fetch(ctx context.Context, into, repository string) error {
	if err := os.MkdirAll(filepath.Dir(into), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(into), "fetch-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	data := filepath.Join(work, "data")
	if err := errors.Join(os.Mkdir(data, 0o700), os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(downloaded), 0o600)); err != nil {
		return err
	}
	unpacked := filepath.Join(work, "unpacked") // renamed when complete
	port, err := freePort(ctx, 0)
	if err != nil {
		return err
	}
	config := embeddedpostgres.DefaultConfig().Version(downloaded).Port(uint32(port)).Logger(io.Discard).
		CachePath(filepath.Join(work, "cache")).RuntimePath(filepath.Join(work, "run")).DataPath(data).BinariesPath(unpacked)
	if repository != "" {
		config = config.BinaryRepositoryURL(repository)
	}
	started := embeddedpostgres.NewDatabase(config).Start()
	if len(candidates(filepath.Join(unpacked, "bin"), nil)) == 0 {
		return cmp.Or(started, errNoPrograms)
	}
	if err := os.RemoveAll(into); err != nil {
		return err
	}
	return os.Rename(unpacked, into)
}
