package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service"
)

// setup has the values for the files of init. They come from flags, answers and the databases.
type setup struct {
	*terminal
	// file is the path of the configuration file.
	file string
	// Use is gitlab or loose_foreign_keys, "" until it is known.
	Use string
	// URL and Replica belong to main. Others has the other databases.
	URL, Replica string
	Others       []config.Database
	// Definitions is the definitions file. wroteRules reports that init wrote the file.
	Definitions string
	wroteRules  bool
	// Listen and Web are addresses. TLSCert and TLSKey are files.
	Listen, Web, TLSCert, TLSKey string
	// force overwrites files. asking means that a person answers questions through input.
	force, asking bool
	input         *bufio.Reader
	survey        repo.Survey
	// backup is the path of the replaced file, "" if there was none.
	backup string
	// groupReads: the group of the service can read the configuration.
	groupReads bool
}

// initCommand writes a configuration. It asks for missing values on a terminal, unless --yes is
// given.
func initCommand(a *app) *cobra.Command {
	s := &setup{terminal: a.terminal}
	var others []string
	var yes bool
	command := &cobra.Command{
		Use:     "init",
		GroupID: groupServe,
		Short:   "Write a configuration and a definitions file for loose foreign keys",
		Args:    between(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(c.Context())
			defer stop()
			s.file, s.asking = cmp.Or(a.configFile, "caretaker.yml"), a.interactive() && !yes
			s.input = bufio.NewReader(a.std.In)
			if err := s.readOthers(others); err != nil {
				return usage(err)
			}
			return s.write(ctx)
		},
	}
	flags := command.Flags()
	flags.StringVar(&s.Use, "use", "",
		"which `workers`: gitlab (all workers) or loose_foreign_keys (only the workers for loose foreign keys). "+
			"Default: gitlab if main has GitLab's tables, otherwise loose_foreign_keys")
	flags.StringVar(&s.URL, "url", "", "`URL` of the main database: postgres://…")
	flags.StringVar(&s.Replica, "replica-url", "", "`URL` of a read replica of main")
	flags.StringArrayVar(&others, "database", nil, "another database as `NAME=URL` (repeatable)")
	flags.StringVar(&s.Definitions, "definitions", "",
		"definitions `file` (default loose_foreign_keys.yml next to the configuration)")
	flags.StringVar(&s.Listen, "listen", "", "API `address` (default 127.0.0.1:50051)")
	flags.StringVar(&s.Web, "web-listen", "", "status page `address` (default 127.0.0.1:8080)")
	flags.StringVar(&s.TLSCert, "tls-cert", "", "PEM `file` with the server's certificate")
	flags.StringVar(&s.TLSKey, "tls-key", "", "PEM `file` with the server's key")
	flags.BoolVar(&yes, "yes", false, "use the defaults instead of prompting")
	flags.BoolVar(&s.force, "force", false, "overwrite an existing configuration")
	return command
}

// readOthers parses NAME=URL pairs.
func (s *setup) readOthers(pairs []string) error {
	for _, pair := range pairs {
		name, url, ok := strings.Cut(pair, "=")
		if !ok || name == "" || url == "" {
			return errors.New("--database must have the form NAME=URL, such as ci=postgres://caretaker@db:5432/ci")
		}
		if err := config.CheckName(name); err != nil {
			return fmt.Errorf("--database %s: %w", name, err)
		}
		if name == mainDatabase {
			return errors.New("--database must not be main: set the URL of main with --url")
		}
		s.Others = append(s.Others, config.Database{Name: name, URL: url})
	}
	if s.Use != "" && s.Use != service.UseGitLab && s.Use != service.UseLooseForeignKeys {
		return fmt.Errorf("--use: %q is neither %s nor %s", s.Use, service.UseLooseForeignKeys, service.UseGitLab)
	}
	return nil
}

// write asks for the settings, connects to the databases and writes the files.
func (s *setup) write(ctx context.Context) error {
	if _, err := os.Stat(s.file); err == nil && !s.force {
		return fmt.Errorf("%s already exists: use --force to overwrite the file, or choose another file with --config",
			s.file)
	}
	if err := s.databases(ctx); err != nil {
		return err
	}
	if err := s.questions(); err != nil {
		return err
	}
	if s.Use == service.UseGitLab && !s.survey.GitLab {
		s.note("warning: main has no GitLab tables: use --use " + service.UseLooseForeignKeys +
			", unless GitLab creates its tables later")
	}
	if err := s.writeFiles(); err != nil {
		return err
	}
	return s.done()
}

// databases connects to all databases. On a terminal it asks for the URL of main until one answers.
func (s *setup) databases(ctx context.Context) error {
	for {
		if s.URL == "" {
			const question = "URL of the database (postgres://role@host:5432/name)"
			if err := s.ask(question, "", &s.URL); err != nil {
				return err
			}
		}
		if s.URL == "" {
			return usage(errors.New("--url is required: use the form postgres://role@host:5432/name"))
		}
		label := "--url"
		if s.asking {
			label = "URL of main"
		}
		err := s.connect(ctx, mainDatabase, label, s.URL, func(d *repo.Database) (err error) {
			s.survey, err = d.Survey(ctx)
			return err
		})
		if err == nil {
			break
		}
		if !s.asking {
			return err
		}
		s.note("%v", err)
		s.URL = ""
	}
	for _, d := range s.Others {
		if err := s.connect(ctx, d.Name, "--database "+d.Name, d.URL, nil); err != nil {
			return err
		}
	}
	if s.Replica != "" {
		if err := s.connect(ctx, mainDatabase, "--replica-url", s.Replica, nil); err != nil {
			return err
		}
	}
	return s.differ(ctx)
}

// differ returns an error if two names refer to one database.
func (s *setup) differ(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	all := &settings{
		Config: &config.Config{
			Databases: append([]config.Database{{Name: mainDatabase, URL: s.URL}}, s.Others...),
		},
		service: service.Config{Use: service.UseGitLab}, // init asks for it later
	}
	_, closeAll, err := databases(ctx, all)
	if err == nil {
		closeAll()
	}
	return err
}

// connectTimeout bounds each connection.
const connectTimeout = 10 * time.Second

// connect opens a database within connectTimeout, and calls inspect if that is not nil. An error
// begins with the label of the URL, such as its flag.
func (s *setup) connect(
	ctx context.Context, name, label, url string, inspect func(*repo.Database) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	d, err := repo.Open(ctx, name, url)
	if err != nil {
		return usage(errors.New(strings.Replace(err.Error(), "databases."+name+".url", label, 1)))
	}
	defer d.Close()
	err = d.Ping(ctx)
	if err == nil && inspect != nil {
		err = inspect(d)
	}
	if refused, ok := errors.AsType[*dberr.Error](err); ok && refused.Refused() {
		return fmt.Errorf("%s: %s: %w", label, refused.Why(), refused.Cause())
	}
	if err != nil {
		return fmt.Errorf("%s: %w: start PostgreSQL, or check the network and the host and port in the URL", label, err)
	}
	return nil
}

// questions asks for the settings that are not known yet.
func (s *setup) questions() error {
	proposed := service.UseLooseForeignKeys
	if s.survey.GitLab {
		proposed = service.UseGitLab
	}
	folder := filepath.Dir(s.file)
	for _, q := range []struct {
		question, proposed string
		to                 *string
	}{
		{"Use (loose_foreign_keys, or gitlab to also delete GitLab's users and groups)", proposed, &s.Use},
		{"Definitions file", filepath.Join(folder, "loose_foreign_keys.yml"), &s.Definitions},
		{"API address", "127.0.0.1:50051", &s.Listen},
		{"Status page address", "127.0.0.1:8080", &s.Web},
	} {
		if *q.to != "" {
			continue
		}
		if err := s.ask(q.question, q.proposed, q.to); err != nil {
			return err
		}
	}
	if config.Loopback(s.Listen) && config.Loopback(s.Web) || s.TLSCert != "" {
		return nil
	}
	if s.asking {
		s.note("Other hosts can reach the server, so the API needs a certificate.")
	}
	return errors.Join(s.ask("Certificate file (PEM)", "", &s.TLSCert),
		s.ask("Private key file (PEM)", "", &s.TLSKey))
}

// ask asks a question on a terminal. The proposed value replaces an empty or missing answer.
func (s *setup) ask(question, proposed string, to *string) error {
	*to = proposed
	if !s.asking {
		return nil
	}
	if proposed != "" {
		question += " [" + proposed + "]"
	}
	_, _ = fmt.Fprintf(s.std.Err, "%s: ", question)
	line, err := s.input.ReadString('\n')
	if err != nil {
		return errDeclined
	}
	*to = cmp.Or(strings.TrimSpace(line), proposed)
	return nil
}
