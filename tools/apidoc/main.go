// Command apidoc is a protoc plugin that writes one Markdown page for each package of the API,
// from the comments in its proto files. buf runs it: see buf.gen.yaml.
package main

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	protogen.Options{}.Run(func(plugin *protogen.Plugin) error {
		plugin.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)
		packages := map[protoreflect.FullName][]*protogen.File{}
		for _, file := range plugin.Files {
			if file.Generate {
				name := file.Desc.Package()
				packages[name] = append(packages[name], file)
			}
		}
		for name, files := range packages {
			page{plugin.NewGeneratedFile(string(name)+".md", "")}.files(name, files)
		}
		return nil
	})
}

// page is a Markdown file in the making.
type page struct{ out *protogen.GeneratedFile }

// files writes the page of a package. The files with services, which the others serve, come first.
func (p page) files(name protoreflect.FullName, files []*protogen.File) {
	slices.SortStableFunc(files, func(a, b *protogen.File) int {
		return cmp.Compare(len(b.Services), len(a.Services))
	})
	described := ofCalls(files)
	directory := path.Dir(files[0].Desc.Path())
	p.out.P("<!-- Generated from ", directory, " by make generate. Do not edit. -->")
	p.out.P()
	p.out.P("# ", name)
	for _, file := range files {
		for _, service := range file.Services {
			p.out.P("\n", prose(introduction(file)))
			p.service(service)
		}
		for _, message := range file.Messages {
			if !described[message] {
				p.message(message)
			}
		}
		for _, enum := range file.Enums {
			p.enum(enum)
		}
	}
}

// service writes its calls, each with the fields of its request and response.
func (p page) service(service *protogen.Service) {
	p.heading("Service", service.Desc, service.Comments)
	for _, method := range service.Methods {
		p.out.P("\n### ", method.Desc.Name())
		p.out.P("\n", prose(method.Comments))
		p.fields("\nRequest:\n", method.Input)
		if method.Desc.IsStreamingServer() {
			p.fields("\nStream of responses:\n", method.Output)
		} else {
			p.fields("\nResponse:\n", method.Output)
		}
	}
}

func (p page) message(message *protogen.Message) {
	if message.Desc.IsMapEntry() {
		return
	}
	p.heading("Message", message.Desc, message.Comments)
	p.fields("", message)
	for _, nested := range message.Messages {
		p.message(nested)
	}
	for _, nested := range message.Enums {
		p.enum(nested)
	}
}

// fields lists the fields of a message, if it has any, without those of pages: the service's
// comment describes them.
func (p page) fields(title string, message *protogen.Message) {
	fields := slices.DeleteFunc(slices.Clone(message.Fields), func(f *protogen.Field) bool {
		name := f.Desc.Name()
		return name == "page_size" || name == "page_token" || name == "next_page_token"
	})
	if len(fields) > 0 {
		p.out.P(title)
	}
	for _, field := range fields {
		p.item(field.Desc, " ("+fieldType(field.Desc)+")", field.Comments)
	}
}

// ofCalls returns the messages that are described with the calls.
func ofCalls(files []*protogen.File) map[*protogen.Message]bool {
	all := map[*protogen.Message]bool{}
	for _, file := range files {
		for _, service := range file.Services {
			for _, method := range service.Methods {
				all[method.Input], all[method.Output] = true, true
			}
		}
	}
	return all
}

func (p page) enum(enum *protogen.Enum) {
	p.heading("Enum", enum.Desc, enum.Comments)
	p.out.P()
	for _, value := range enum.Values {
		p.item(value.Desc, "", value.Comments)
	}
}

// item prints a field or a value on one line of a list.
func (p page) item(of protoreflect.Descriptor, kind string, comments protogen.CommentSet) {
	text := strings.Join(strings.Fields(prose(comments)), " ")
	p.out.P("* `", of.Name(), "`", kind, ": ", text)
}

func (p page) heading(kind string, of protoreflect.Descriptor, comments protogen.CommentSet) {
	p.out.P()
	p.out.P("## ", kind, " ", of.Name())
	p.out.P()
	p.out.P(prose(comments))
}

// fieldType returns the type of a field, with a link where this page describes it.
func fieldType(field protoreflect.FieldDescriptor) string {
	switch {
	case field.IsMap():
		return fmt.Sprintf("map of %s to %s", fieldType(field.MapKey()), fieldType(field.MapValue()))
	case field.IsList():
		return "repeated " + kind(field)
	case field.HasOptionalKeyword():
		return "optional " + kind(field)
	default:
		return kind(field)
	}
}

func kind(field protoreflect.FieldDescriptor) string {
	switch {
	case field.Enum() != nil:
		return link(field.Enum())
	case field.Message() != nil:
		return link(field.Message())
	default:
		return field.Kind().String()
	}
}

// link refers to the section of a message or enum. Those of other packages are only named.
func link(of protoreflect.Descriptor) string {
	if of.ParentFile().Package().Parent() == "google" {
		return "`" + string(of.FullName()) + "`"
	}
	section := "message"
	if _, isEnum := of.(protoreflect.EnumDescriptor); isEnum {
		section = "enum"
	}
	return fmt.Sprintf("[%s](#%s-%s)", of.Name(), section, strings.ToLower(string(of.Name())))
}

// introduction is the file's comment above its syntax line.
func introduction(file *protogen.File) protogen.CommentSet {
	const syntaxField = 12 // of google.protobuf.FileDescriptorProto
	above := file.Desc.SourceLocations().ByPath(protoreflect.SourcePath{syntaxField})
	return protogen.CommentSet{Leading: protogen.Comments(above.LeadingComments)}
}

// prose is a comment as Markdown, without the instructions to the API's linter.
func prose(comments protogen.CommentSet) string {
	var lines []string
	for line := range strings.Lines(string(comments.Leading + comments.Trailing)) {
		line = strings.TrimRight(strings.TrimPrefix(line, " "), " \n")
		if !strings.HasPrefix(line, "buf:lint:") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}
