// Command dependencies writes what has to be said about the modules that are linked into caretaker:
// the notice, their licences, and a bill of materials. It fails for a module whose licence is
// unknown, or does not allow caretaker to be passed on as it is.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

const usage = `usage: dependencies notice FOLDER          write the names, versions and licences of the modules
       dependencies licences FOLDER        write the texts of the licences
       dependencies sbom FOLDER BINARY     write a bill of materials, CycloneDX JSON, of a program
FOLDER is that of the source of caretaker. All write to the standard output.`

func main() {
	if err := command(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dependencies:", err)
		os.Exit(1)
	}
}

func command(out io.Writer, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "notice":
		modules, err := linked(args[1])
		if err != nil {
			return err
		}
		return writeNotice(out, modules)
	case len(args) == 2 && args[0] == "licences":
		modules, err := linked(args[1])
		if err != nil {
			return err
		}
		return writeLicences(out, modules)
	case len(args) == 3 && args[0] == "sbom":
		modules, err := linked(args[1])
		if err != nil {
			return err
		}
		return writeSBOM(out, modules, args[2])
	}
	return errors.New(usage)
}
