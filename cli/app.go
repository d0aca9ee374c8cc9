package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// app is what commands share.
type app struct {
	Streams
	configFile string
	format     format
	client     connection
	// began says that a command has begun: its errors are not about usage any more.
	began bool
}

// format of the output: "" and "text" are for people.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

// String is the value as it is set.
func (f *format) String() string { return string(*f) }

// Type is what the help calls the value.
func (*format) Type() string { return "format" }

// Set takes text or json.
func (f *format) Set(s string) error {
	if *f = format(s); *f != formatText && *f != formatJSON {
		return errors.New("text or json")
	}
	return nil
}

// settings are the whole configuration: that of the process, and that of the workers.
type settings struct {
	*config.Config
	service service.Config
}

// settings reads the file named by --config, and the environment, with config.Load or config.LoadPartial.
func (a *app) settings(load func(string, ...any) (*config.Config, error)) (*settings, error) {
	s := &settings{}
	var err error
	s.Config, err = load(a.configFile, &s.service)
	return s, err
}

// usage makes an error one of whoever gave the command.
func usage(err error) error { return &exitError{exitUsage, err} }

// databases opens the configured databases in the order of the rotation. Two names of one database are refused; one that
// does not answer is looked at when it does. closeAll closes them.
func databases(ctx context.Context, c *config.Config) (open []*repo.Database, closeAll func(), err error) {
	closeAll = func() {
		for _, d := range open {
			d.Close()
		}
	}
	for _, d := range c.Databases {
		database, err := repo.Open(ctx, d.Name, d.URL)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		open = append(open, database)
	}
	repo.MustDiffer(open)
	for _, d := range open {
		if same, is := errors.AsType[*repo.SameDatabaseError](d.Ping(ctx)); is {
			closeAll()
			return nil, nil, same
		}
	}
	return open, closeAll, nil
}

// json writes a value as one indented JSON document.
func (a *app) json(v any) error {
	encoder := json.NewEncoder(a.Out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// say writes a line for people.
func (a *app) say(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Out, format+"\n", args...)
}

// text is say for people only: with --output json it says nothing.
func (a *app) text(format string, args ...any) {
	if a.format != formatJSON {
		a.say(format, args...)
	}
}

// note writes a line that is not part of the output.
func (a *app) note(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Err, format+"\n", args...)
}

// table writes aligned columns under a heading.
func (a *app) table(heading []string, rows [][]string) error {
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{heading}, rows...) {
		_, _ = fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return w.Flush()
}
