package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

const head = `caretaker
Copyright The caretaker authors

Licensed under the Apache License, Version 2.0: see LICENSE.

The programs of a release have these modules in them. Their licences are in LICENSES.txt beside each
program (make release writes it); their sources can be had from any proxy of Go modules, as
go mod download MODULE@VERSION does. This file is written by make generate.

`

// writeNotice writes a line for each module, and what their own notices say.
func writeNotice(out io.Writer, modules []module) error {
	text := strings.Builder{}
	text.WriteString(head)
	wide, version := 0, 0
	for _, m := range modules {
		wide, version = max(wide, len(m.path)), max(version, len(m.version))
	}
	for _, m := range modules {
		fmt.Fprintf(&text, "%-*s  %-*s  %s\n",
			wide, m.path, version, m.version, strings.Join(m.licences, " AND "))
	}
	text.WriteString(grouped(modules, func(m module) map[string]string { return m.notices }))
	_, err := io.WriteString(out, text.String())
	return err
}

// writeLicences writes each text once, below the names of the modules that have it.
func writeLicences(out io.Writer, modules []module) error {
	_, err := io.WriteString(out, "The licences of what is linked into caretaker.\n"+
		grouped(modules, func(m module) map[string]string { return m.texts }))
	return err
}

// grouped are texts of modules, each once.
func grouped(modules []module, texts func(module) map[string]string) string {
	owners := map[string][]string{}
	for _, m := range modules {
		for _, name := range slices.Sorted(maps.Keys(texts(m))) {
			owners[texts(m)[name]] = append(owners[texts(m)[name]], m.path+", "+name)
		}
	}
	order := slices.SortedFunc(maps.Keys(owners), func(a, b string) int {
		return cmp.Compare(owners[a][0], owners[b][0])
	})
	var out strings.Builder
	for _, text := range order {
		out.WriteString("\n" + strings.Repeat("=", 80) + "\n")
		out.WriteString(strings.Join(owners[text], "\n") + "\n")
		out.WriteString(strings.Repeat("-", 80) + "\n\n" + text + "\n")
	}
	return out.String()
}
