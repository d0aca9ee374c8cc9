// Command configdoc writes docs/reference/configuration.md, and the configuration that packages install: every
// key, from the tags and comments of the structs that have them.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/service"
)

const head = `# Configuration

<!-- Written by go generate from the tags and comments of the structs that have the keys. Do not edit. -->

caretaker reads the YAML file in ` + "`--config`" + ` and environment variables, which take precedence. To get the variable of a key,
write the key in capitals after ` + "`CARETAKER_`" + `, and replace dots by ` + "`_`" + `: ` + "`CARETAKER_DATABASES_MAIN_URL`" + ` sets ` + "`databases.main.url`" + `.
Only ` + "`databases.main.url`" + ` is required. ` + "`caretaker serve`" + ` rejects unknown keys, and reports all errors at once.

The name of a [database](../guides/multiple-databases.md) has up to 31 lowercase letters, digits and ` + "`_`" + `, and begins with a letter.
Scheduled runs process the databases in the order main, ci, sec, then the others by name. Variables that end in ` + "`_REPLICA_URL`" + `
set a ` + "`replica_url`" + `. Only the file can set the ` + "`url`" + ` of a database whose name is ` + "`replica`" + ` or ends in ` + "`_replica`" + `.

Durations look like ` + "`30s`, `2m` or `48h`" + `. Sizes are in bytes, or in kB, MB, GB or TB, each 1,024 times the previous unit.
`

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "configdoc:", err)
		os.Exit(1)
	}
}

func write() error {
	comments := map[string]string{}
	for _, folder := range []string{"config", "service"} {
		if err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return collect(comments, path)
		}); err != nil {
			return err
		}
	}
	keys := new(config.Config).Keys(&service.Config{})
	page, err := reference(keys, comments)
	if err != nil {
		return err
	}
	if err := os.WriteFile("docs/reference/configuration.md", []byte(page), 0o600); err != nil {
		return err
	}
	file, err := installed(keys, comments)
	if err != nil {
		return err
	}
	return os.WriteFile("deploy/packages/caretaker.yml", []byte(file), 0o600)
}

// reference is the page with all keys in tables.
func reference(keys []config.Key, comments map[string]string) (string, error) {
	var out strings.Builder
	out.WriteString(head)
	last := ""
	for _, k := range keys {
		title, name := "The server", k.Path
		if worker := strings.SplitN(k.Path, ".", 3); worker[0] == "workers" {
			title, name = worker[1], worker[2]
		}
		if title != last {
			fmt.Fprintf(&out, "\n## %s\n\n", title)
			if title != "The server" {
				fmt.Fprintf(&out, "The keys of `workers.%s` ([the worker](workers/%s.md)):\n\n", title, title)
			}
			out.WriteString("| key | default | meaning |\n|---|---|---|\n")
			last = title
		}
		text := comments[k.Owner.String()+"."+k.Field.Name]
		if text == "" {
			return "", fmt.Errorf("%s: the field %s of %s has no comment", k.Path, k.Field.Name, k.Owner)
		}
		text = strings.Join(append([]string{text}, allowed(k)...), ". ")
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", name, code(k.Default), text)
	}
	return out.String(), nil
}

// collect notes the comments of the fields in a file, by package, type and field.
func collect(comments map[string]string, path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, is := n.(*ast.TypeSpec)
		if !is {
			return true
		}
		if s, is := spec.Type.(*ast.StructType); is {
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					comments[file.Name.Name+"."+spec.Name.Name+"."+name.Name] = sentence(f.Doc.Text(), name.Name)
				}
			}
		}
		return true
	})
	return nil
}

// sentence is a comment without the name that it begins with.
func sentence(comment, name string) string {
	text := strings.TrimPrefix(strings.Join(strings.Fields(comment), " "), name+" ")
	for _, verb := range []string{"is ", "are "} {
		text = strings.TrimPrefix(text, verb)
	}
	return strings.TrimSuffix(strings.ReplaceAll(text, "|", `\|`), ".")
}

// allowed returns sentences about the allowed values.
func allowed(k config.Key) (parts []string) {
	tag := k.Field.Tag
	if words := tag.Get("of"); words != "" {
		parts = append(parts, "Values: `"+strings.Join(strings.Fields(words), "`, `")+"`")
	}
	switch least, most := tag.Get("min"), tag.Get("max"); {
	case least != "":
		parts = append(parts, "Values: "+least+" to "+most)
	case most != "" && k.Field.Type != reflect.TypeFor[time.Duration]() && tag.Get("unit") == "":
		parts = append(parts, "Values: 1 to "+most)
	case most != "":
		parts = append(parts, "Maximum "+most)
	}
	if off, is := tag.Lookup("off"); is && off == "" {
		parts = append(parts, "Disabled if empty")
	} else if is {
		parts = append(parts, off+" disables the limit")
	}
	return parts
}

func code(s string) string {
	if s == "" {
		return "-"
	}
	return "`" + s + "`"
}
