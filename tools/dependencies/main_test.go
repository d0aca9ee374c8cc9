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

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestRead_RefusesLicencesThatAreNotKnownOrNotAllowed(t *testing.T) {
	words, err := assets.DefaultClassifier()
	assert.NoError(t, err)
	gpl, err := assets.ReadLicenseFile("License/GPL-3.0/license.txt")
	assert.NoError(t, err)
	mit, err := assets.ReadLicenseFile("License/MIT/pristine.txt")
	assert.NoError(t, err)
	for text, want := range map[string]string{
		"":                     "no file with a licence",
		"All rights reserved.": "not known",
		string(gpl):            "GPL-3.0 is not one of Apache-2.0",
		string(mit):            "",
	} {
		folder := t.TempDir()
		if text != "" {
			assert.NoError(t, os.WriteFile(filepath.Join(folder, "LICENSE"), []byte(text), 0o600))
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
	assert.NoError(t, err)
	info, err := buildinfo.ReadFile(program)
	assert.NoError(t, err)
	modules := []module{{path: standardLibrary, licences: []string{"BSD-3-Clause"}}}
	if err := writeSBOM(&bytes.Buffer{}, modules, program); err == nil {
		t.Error("a module of the program that its source does not need is no error")
	}
	for _, d := range info.Deps {
		modules = append(modules, module{path: d.Path, licences: []string{"MIT"}})
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		assert.NoError(t, writeSBOM(out, modules, program))
	}
	assert.That(t, bytes.Equal(first.Bytes(), second.Bytes()), "two bills of one program differ")
	var bill struct {
		BOMFormat  string
		Components []struct{ Name, Version, Purl string }
	}
	assert.NoError(t, json.Unmarshal(first.Bytes(), &bill))
	if bill.BOMFormat != "CycloneDX" || len(bill.Components) != len(info.Deps)+1 {
		t.Errorf("%s", first.Bytes())
	}
}
