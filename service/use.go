package service

import "strings"

// What an installation uses: the values of the key use.
const (
	UseGitLab           = "gitlab"
	UseLooseForeignKeys = "loose_foreign_keys"
)

// LooseForeignKeysOnly says that nothing else is used: neither the workers that know GitLab's
// tables nor jobs, plans and protections, and that their tables may not be there.
func (c *Config) LooseForeignKeysOnly() bool { return c.Use == UseLooseForeignKeys }

// uses reports whether a worker of the list is used.
func (c *Config) uses(w worker) bool { return w.looseForeignKeys || !c.LooseForeignKeysOnly() }

// unused are the workers that are not used.
func (c *Config) unused() (names []string) {
	for _, w := range c.list() {
		if !c.uses(w) {
			names = append(names, w.name)
		}
	}
	return names
}

// Workers are the names of the workers that are used, in the order in which they are shown.
func (c *Config) Workers() (names []string) {
	for _, w := range c.list() {
		if c.uses(w) {
			names = append(names, w.name)
		}
	}
	return names
}

// Unused says why a key that is given has no effect; "" if it has one. It is for package config.
func (c *Config) Unused(key string) string {
	for _, name := range c.unused() {
		if strings.HasPrefix(key, "workers."+name+".") {
			return "there is no worker " + name + " with use: " + UseLooseForeignKeys +
				": leave the key out, or set use: " + UseGitLab
		}
	}
	return ""
}
