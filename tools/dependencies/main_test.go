package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/licenseclassifier/v2/assets"
)

func TestRead_RefusesLicencesThatAreNotKnownOrNotAllowed(t *testing.T) {
	words, err := assets.DefaultClassifier()
	if err != nil {
		t.Fatal(err)
	}
	gpl, err := assets.ReadLicenseFile("License/GPL-3.0/license.txt")
	if err != nil {
		t.Fatal(err)
	}
	mit, err := assets.ReadLicenseFile("License/MIT/pristine.txt")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                     "no file with a licence",
		"All rights reserved.": "not known",
		string(gpl):            "GPL-3.0 is not one of Apache-2.0",
		string(mit):            "",
	} {
		folder := t.TempDir()
		if text != "" {
			if err := os.WriteFile(filepath.Join(folder, "LICENSE"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m := module{path: "example.com/m"}
		err := m.read(folder, words)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
}

func TestSBOM_HasWhatTheProgramHas(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	modules := []module{{path: standardLibrary, licences: []string{"BSD-3-Clause"}}}
	if err := writeSBOM(&bytes.Buffer{}, modules, program); err == nil {
		t.Error("a module of the program that its source does not need is no error")
	}
	for _, d := range info.Deps {
		modules = append(modules, module{path: d.Path, licences: []string{"MIT"}})
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := writeSBOM(out, modules, program); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two bills of one program differ")
	}
	var bill struct {
		BOMFormat  string
		Components []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal(first.Bytes(), &bill); err != nil {
		t.Fatal(err)
	}
	if bill.BOMFormat != "CycloneDX" || len(bill.Components) != len(info.Deps)+1 {
		t.Errorf("%s", first.Bytes())
	}
}
