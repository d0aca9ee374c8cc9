package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/jackc/pgx/v5"
)

// machine names what the figures were measured on.
func (l *lab) machine(ctx context.Context) (string, error) {
	d, err := l.connect(ctx, "postgres")
	if err != nil {
		return "", err
	}
	defer func() { _ = d.conn.Close(ctx) }()
	var version string
	if err := d.one(ctx, &version, `SHOW server_version`); err != nil {
		return "", err
	}
	rows, err := d.conn.Query(ctx, `SELECT name || ' = ' || current_setting(name) FROM unnest($1::text[]) AS name`,
		[]string{
			"shared_buffers", "fsync", "synchronous_commit", "full_page_writes", "wal_level", "max_wal_size", "autovacuum",
			"work_mem", "random_page_cost", "jit", "shared_preload_libraries",
		})
	if err != nil {
		return "", err
	}
	settings, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "", err
	}
	sizes := fmt.Sprintf("%d parents, %d children each", l.parents, l.children)
	if l.scale {
		sizes = grouped(int64(l.rows)) + " rows"
	}
	return fmt.Sprintf("%s, %d cores, load %s, %s/%s, %s, PostgreSQL %s (%s).\n%s, %d rounds.",
		processor(), runtime.NumCPU(), busy(), runtime.GOOS, runtime.GOARCH, runtime.Version(), version, strings.Join(settings, ", "),
		sizes, l.repeat), nil
}

// busy is how many processes wanted a core in the last minute, where Linux shows it.
func busy() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

// processor is the model of the first processor, where Linux shows it.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unnamed processor"
}
