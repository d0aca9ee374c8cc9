// Package cli is the command line. It creates the server and its parts for the commands that serve.
// The other commands are clients of the API.
//
// It guarantees:
//
//   - Exit codes: 0 done, 1 failed, 2 usage, 3 skipped. Usage errors are bad arguments, and unknown
//     workers, databases, tables, records, runs and jobs. A wrong configuration is a failure.
//   - Results go to the standard output. Logs, errors and progress go to the standard error.
//   - With --output json the output is one document: the API's answer as protobuf JSON. With yaml it
//     is the same as YAML.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/server"
)

// Streams are the input, the outputs and the environment of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// Env has one NAME=value per entry, as in os.Environ.
	Env config.Environment
}

// The exit codes, on which scripts depend.
const exitDone, exitFailed, exitUsage, exitSkipped = 0, 1, 2, 3

// exitError is an error with an exit code. The code of other errors is 1.
type exitError struct {
	code int
	// err is nil without a message to print.
	err error
}

// Error returns the message, or "" if only the exit code matters.
func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns the error with the message. nil means none.
func (e *exitError) Unwrap() error { return e.err }

// Main runs a command with the standard streams and the environment of the process.
func Main(args []string) int {
	server.LogErrorsOfGRPC()
	return Run(context.Background(), args, Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: config.OfProcess(),
	})
}

// Run runs the command that args name and returns its exit code.
func Run(ctx context.Context, args []string, streams Streams) int {
	a := newApp(streams)
	root := rootCommand(a)
	adaptCommands(a, root)
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	if text := err.Error(); text != "" {
		_, _ = fmt.Fprintf(streams.Err, "caretaker: %s\n", errorLines(err))
	}
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		return exit.code
	case !a.began:
		_, _ = fmt.Fprintf(streams.Err, "See %s --help\n", command.CommandPath())
		return exitUsage
	}
	return exitFailed
}

// rootCommand returns the command caretaker with all subcommands. Errors and usage are not printed
// here: the caller prints them with the exit code.
func rootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "caretaker",
		Short:         "Loose foreign keys for any PostgreSQL database, and user and group cleanup for GitLab",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          commandOnly,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	// 1. Flags of all commands.
	root.PersistentFlags().StringVar(&a.configFile, "config", "", "configuration `file` (YAML)")
	root.PersistentFlags().FuncP("output", "o",
		"output `format`: text, wide (text with full IDs and all columns), json or yaml (default text)",
		a.setOutput)
	// 2. Commands of a server, which read the configuration.
	root.AddGroup(&cobra.Group{ID: groupServe, Title: "Server:"}, &cobra.Group{ID: groupClient, Title: "Client:"})
	root.AddCommand(initCommand(a), devCommand(a), serveCommand(a), migrateCommand(a),
		doctorCommand(a), lfkCommand(a), versionCommand(a))
	// 3. Commands of a client, which connect to a server.
	clients := []*cobra.Command{
		runCommand(a), statusCommand(a), leasesCommand(a), runsCommand(a), firesCommand(a),
		watchCommand(a), cancelCommand(a), pauseCommand(a), resumeCommand(a), flagsCommand(a),
		auditCommand(a), receiptsCommand(a),
	}
	for _, c := range append(clients, gitlabCommands(a)...) {
		c.GroupID = groupClient
		flags := c.PersistentFlags()
		if c.Name() == "receipts" { // Some of its subcommands connect to databases.
			flags = c.Flags()
		}
		a.clientFlags(flags)
		root.AddCommand(c)
	}
	// 4. Help, errors and completions, for the commands added above.
	root.SetHelpCommand(helpCommand(root))
	root.SetFlagErrorFunc(flagError)
	a.groupFlags(root)
	addHelp(root)
	a.markBegin(root)
	addCompletions(a, root)
	return root
}

// setOutput sets the format of --output.
func (a *app) setOutput(format string) error {
	if !slices.Contains([]string{"text", "json", "yaml", "wide"}, format) {
		return errors.New("must be text, json, yaml or wide")
	}
	a.asJSON, a.wide = format == "json" || format == "yaml", format == "wide"
	if format == "yaml" {
		a.yaml = yaml.NewEncoder(a.std.Out)
		a.yaml.SetIndent(2)
	}
	return nil
}

// helpCommand shows the help of a command. Unlike cobra's own, it fails for an unknown command.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show help for a command",
		RunE: func(_ *cobra.Command, args []string) error {
			command, remaining, err := root.Find(args)
			if err != nil {
				return usage(err)
			}
			if len(remaining) > 0 {
				return usage(fmt.Errorf("%w: run `caretaker --help` to list the commands",
					unknownCommand(command, remaining[0])))
			}
			return command.Help()
		},
	}
}

// The groups of commands in the help.
const groupServe, groupClient, groupGitLab = "serve", "client", "gitlab"

// markBegin makes all commands refuse empty arguments and flags, and then set began. Errors before
// that point are usage errors. Later errors are failures.
func (a *app) markBegin(command *cobra.Command) {
	if do := command.RunE; do != nil {
		command.RunE = func(c *cobra.Command, args []string) error {
			if err := rejectEmpty(c, args); err != nil {
				return err
			}
			a.began = true
			return do(c, args)
		}
	}
	for _, child := range command.Commands() {
		a.markBegin(child)
	}
}

// version returns the module's version, or the source commit if the module has no version.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "development"
}

// Root returns all commands, for the generator of the man pages.
func Root(streams Streams) *cobra.Command { return rootCommand(newApp(streams)) }

// build describes this program for --output json.
type build struct {
	Version string `json:"version"`
	// Commit is the source commit, "" if unknown. Modified reports uncommitted changes.
	Commit   string `json:"commit"`
	Modified bool   `json:"modified"`
	// Date is the time of the commit, in RFC 3339 and UTC, "" if unknown.
	Date string `json:"date"`
	Go   string `json:"go"`
	// Schema has the newest migrations: of every database, and of main.
	Schema schemaVersion `json:"schema"`
}

// schemaVersion holds the newest migrations that this binary knows.
type schemaVersion struct {
	Every int64 `json:"every"`
	Main  int64 `json:"main"`
}

// versionCommand prints the build of this binary. It connects to nothing, but refuses a --config
// file that serve would refuse.
func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version, commit, commit date, Go version and schema versions",
		Args:  between(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if _, err := a.checkConfigFile(); err != nil {
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

// app is the state that all commands share.
type app struct {
	*terminal
	configFile string
	client     *connection
	// connecting are the flags of client.
	connecting *pflag.FlagSet
	// began is set when a command begins. Later errors are not usage errors.
	began bool
}

// newApp returns the state of one call of the program.
func newApp(streams Streams) *app {
	a := &app{terminal: &terminal{std: streams}, client: &connection{}}
	a.connecting = a.client.flags()
	return a
}

// clientFlags adds the flags of a command that connects to a server.
func (a *app) clientFlags(flags *pflag.FlagSet) {
	flags.AddFlagSet(a.connecting)
	a.localFlag(flags)
}

// usage marks an error as a usage error, with exit code 2.
func usage(err error) error { return &exitError{exitUsage, err} }
