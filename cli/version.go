package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/repo"
)

// build is what --output json has of this program.
type build struct {
	Version string `json:"version"`
	// Commit is that of the source, "" if that is not known; Modified: it was changed since.
	Commit   string `json:"commit"`
	Modified bool   `json:"modified"`
	// Date is when the commit was made, RFC 3339 in UTC; "" if that is not known.
	Date string `json:"date"`
	Go   string `json:"go"`
	// Schema is what caretaker migrate brings: the newest migration of every database, and of main.
	Schema schemaVersion `json:"schema"`
}

type schemaVersion struct {
	Every int64 `json:"every"`
	Main  int64 `json:"main"`
}

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version, its commit and date, Go, and the schema that migrate brings",
		Args:  between(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if err := a.checkConfigFile(); err != nil {
				return err
			}
			b := build{Version: version(), Go: runtime.Version()}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					switch s.Key {
					case "vcs.revision":
						b.Commit = s.Value
					case "vcs.modified":
						b.Modified = s.Value == "true"
					case "vcs.time":
						b.Date = s.Value
					}
				}
			}
			var err error
			if b.Schema.Every, b.Schema.Main, err = repo.NewestMigrations(); err != nil {
				return err
			}
			return a.report(nil, b, func() {
				commit := b.Commit
				if b.Modified {
					commit += " (modified)"
				}
				a.println("caretaker %s", b.Version)
				a.fields("commit", commit, "date", b.Date, "go", b.Go,
					"schema", fmt.Sprintf("%d in every database, %d in main", b.Schema.Every, b.Schema.Main))
			})
		},
	}
}
