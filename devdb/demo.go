package devdb

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
)

//go:embed loose_foreign_keys.yml
var definitions string

// Definitions returns the sample definitions of loose foreign keys (YAML) for the reference schema.
func Definitions() string { return definitions }

// LoadDemo fills the reference schema so that every worker has something to do and something to
// skip, the same rows each time. points in time are relative to now. urls are those of main, ci and
// sec. Where ci or sec is missing, its tables are in main. A database that has demo data already,
// also what the workers have left of it, stays as it is. Takes a few seconds.
func LoadDemo(ctx context.Context, urls map[string]string) error {
	for _, database := range []string{"main", "ci", "sec"} {
		if err := load(ctx, cmp.Or(urls[database], urls["main"]), demoPart(database)); err != nil {
			return fmt.Errorf("cannot load the demo data into %s: %w", database, err)
		}
	}
	return nil
}

func demoPart(database string) part {
	return map[string]part{
		"main": {missing: "SELECT NOT EXISTS (SELECT FROM organizations)", files: []string{
			"demo_main_1_people.sql", "demo_main_2_groups.sql", "demo_main_3_content.sql",
			"demo_main_4_work.sql", "demo_sequences.sql", "demo_main_5_deletions.sql",
		}},
		"ci": {missing: "SELECT NOT EXISTS (SELECT FROM ci_triggers)", files: []string{
			"demo_ci.sql", "demo_sequences.sql", "demo_ci_deletions.sql",
		}},
		"sec": {missing: "SELECT NOT EXISTS (SELECT FROM vulnerabilities)", files: []string{
			"demo_sec.sql", "demo_sequences.sql", "demo_sec_deletions.sql",
		}},
	}[database]
}
