package service

import (
	"fmt"
	"iter"
	"strings"
	"time"

	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/gitlab/deletion"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/gitlab/group"
	"github.com/caretaker-go/caretaker/service/gitlab/placeholder"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/orphans"
	"github.com/caretaker-go/caretaker/service/run"
)

// list is the list of workers, in display order. Settings, runs, job kinds and metrics of a worker
// come from its line.
func (c *Config) list() []worker {
	if c.workers == nil {
		c.workers = []worker{
			line(lfk.Name, lfk.New).forLooseForeignKeys(),
			line(ghost.Name, ghost.New),
			line(group.Name, group.New),
			line(placeholder.Name, placeholder.New),
			line(token.Name, token.New),
			line(orphans.Name, orphans.New).forLooseForeignKeys(),
		}
	}
	return c.workers
}

// worker is a line of the list.
type worker struct {
	name string
	// settings point to the struct of the worker's settings.
	settings any
	// build makes the worker from its settings, with its kinds of job.
	build func(run.Deps) (*run.Worker, []job.Kind, error)
	// looseForeignKeys marks a worker of loose foreign keys, for any application.
	looseForeignKeys bool
}

// constructor makes a worker of settings C.
type constructor[C any] func(run.Deps, C) (*run.Worker, []job.Kind, error)

// line returns the line of a worker in the list.
func line[C any](name string, build constructor[C]) worker {
	settings := new(C)
	withSettings := func(d run.Deps) (*run.Worker, []job.Kind, error) { return build(d, *settings) }
	return worker{name: name, settings: settings, build: withSettings}
}

// forLooseForeignKeys marks the worker as used wherever loose foreign keys are.
func (w worker) forLooseForeignKeys() worker {
	w.looseForeignKeys = true
	return w
}

// Settings returns the settings of type C, to be read and set. Copies of a Config share them. It
// panics if no worker of the list has such settings.
func Settings[C any](c *Config) *C {
	for _, w := range c.list() {
		if settings, ok := w.settings.(*C); ok {
			return settings
		}
	}
	panic(fmt.Sprintf("no worker has settings of type %T", *new(C)))
}

// Sections returns the settings of the workers by the key of their section, for package config.
func (c *Config) Sections() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for _, w := range c.list() {
			if !yield("workers."+w.name, w.settings) {
				return
			}
		}
	}
}

// addWorkers makes the workers of the list and their kinds of job.
func (s *Service) addWorkers(c Config) error {
	keys, err := Settings[lfk.Config](&c).Keys()
	if err != nil {
		return err
	}
	s.definitions.Store(&keys)
	s.definitionsFile = Settings[lfk.Config](&c).DefinitionsFile
	d := run.Deps{
		Main: s.Main, Databases: s.Databases, Queue: s.queue, Logger: s.Logger,
		RunBatch: s.RunBatch, LooseForeignKeys: s.looseForeignKeys,
	}
	for _, line := range c.list() {
		if !c.uses(line) {
			continue
		}
		w, kinds, err := line.build(d)
		if err != nil {
			return err
		}
		s.Pool.Add(kinds...)
		if err := s.Runner.Add(w); err != nil {
			return err
		}
	}
	if !s.LooseForeignKeysOnly {
		s.Pool.Add(deletion.New(d, s.Workers))
	}
	return nil
}

// looseForeignKeys returns the definitions in use now. A reload replaces them at any time, so a
// run reads them once.
func (s *Service) looseForeignKeys() []lfkrepo.Definition { return *s.definitions.Load() }

// ReloadDefinitions reads the file of loose foreign keys again, if there is one, and returns the
// number of its definitions. A current run keeps its definitions. An error names what to fix, and
// the previous definitions stay in use.
func (s *Service) ReloadDefinitions() (n int, err error) {
	if s.definitionsFile == "" {
		return 0, nil
	}
	keys, err := lfk.Config{DefinitionsFile: s.definitionsFile}.Keys()
	if err != nil {
		refused := fmt.Sprintf("the definitions file was rejected when it was reloaded at %s, so the previous "+
			"definitions stay in use: %s", time.Now().UTC().Format(time.RFC3339), strings.ReplaceAll(err.Error(), "\n", "; "))
		s.definitionsRefused.Store(&refused)
		return 0, err
	}
	s.definitions.Store(&keys)
	s.definitionsRefused.Store(nil)
	return len(keys), nil
}

// refused returns why the file of loose foreign keys was not reloaded, for their worker.
func (s *Service) refused(worker string) string {
	if why := s.definitionsRefused.Load(); why != nil && worker == lfk.Name {
		return *why
	}
	return ""
}
