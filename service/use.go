package service

import "strings"

// Values of the key use: what an installation uses. Without the key it is gitlab.
const (
	UseGitLab           = "gitlab"
	UseLooseForeignKeys = "loose_foreign_keys"
)

// LooseForeignKeysOnly reports whether only loose foreign keys are used. Then workers of GitLab
// tables, jobs, plans and protections do not exist, and their tables may be missing.
func (c *Config) LooseForeignKeysOnly() bool { return c.Use == UseLooseForeignKeys }

// uses reports whether a worker of the list is used.
func (c *Config) uses(w worker) bool { return w.looseForeignKeys || !c.LooseForeignKeysOnly() }

// unused returns the names of the workers that are not used.
func (c *Config) unused() (names []string) {
	for _, w := range c.list() {
		if !c.uses(w) {
			names = append(names, w.name)
		}
	}
	return names
}

// Workers returns the names of the used workers, in display order.
func (c *Config) Workers() (names []string) {
	for _, w := range c.list() {
		if c.uses(w) {
			names = append(names, w.name)
		}
	}
	return names
}

// Unused returns why a given key has no effect, "" if it has one. Package config calls it.
func (c *Config) Unused(key string) string {
	for _, name := range c.unused() {
		if strings.HasPrefix(key, "workers."+name+".") {
			return "worker " + name + " is not available with `use: " + UseLooseForeignKeys +
				"`: remove the key, or set `use: " + UseGitLab + "`"
		}
	}
	return ""
}
