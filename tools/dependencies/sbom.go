package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes the contents of a program, which the program itself lists. The same program
// makes the same bill, as its time is that of the commit.
func writeSBOM(out io.Writer, modules []module, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	bill := cyclonedx.NewBOM()
	bill.SerialNumber = serial(sum)
	main := component(info.Main.Path, info.Main.Version, []string{"Apache-2.0"})
	main.Type = cyclonedx.ComponentTypeApplication
	main.Hashes = &[]cyclonedx.Hash{{
		Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:]),
	}}
	bill.Metadata = &cyclonedx.Metadata{Component: &main}
	properties := []cyclonedx.Property{}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.time":
			bill.Metadata.Timestamp = s.Value
		case "GOOS", "GOARCH", "CGO_ENABLED", "vcs.revision":
			properties = append(properties, cyclonedx.Property{Name: "build:" + s.Key, Value: s.Value})
		}
	}
	main.Properties = &properties

	standard := component("std", info.GoVersion, licences(modules, standardLibrary))
	components, names := []cyclonedx.Component{standard}, []string{}
	for _, d := range info.Deps {
		known := licences(modules, d.Path)
		if known == nil {
			return fmt.Errorf("%s is in %s, but no module that its source needs", d.Path, program)
		}
		components = append(components, component(d.Path, d.Version, known))
	}
	for _, c := range components {
		names = append(names, c.BOMRef)
	}
	bill.Components = &components
	bill.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &names}}
	encoder := cyclonedx.NewBOMEncoder(out, cyclonedx.BOMFileFormatJSON)
	return encoder.SetPretty(true).EncodeVersion(bill, cyclonedx.SpecVersion1_6)
}

// serial is a UUID, of version 8, that is made of the sum of the program.
func serial(sum [sha256.Size]byte) string {
	u := slices.Clone(sum[:16])
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

func licences(modules []module, path string) []string {
	for _, m := range modules {
		if m.path == path {
			return m.licences
		}
	}
	return nil
}

func component(path, version string, licences []string) cyclonedx.Component {
	url := "pkg:golang/" + path + "@" + version
	choices := cyclonedx.Licenses{}
	for _, id := range licences {
		l := &cyclonedx.License{ID: id}
		if id == readByPeople[path] {
			l = &cyclonedx.License{Name: "public domain"}
		}
		choices = append(choices, cyclonedx.LicenseChoice{License: l})
	}
	return cyclonedx.Component{
		BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version,
		PackageURL: url, Licenses: &choices,
	}
}
