// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package template

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	text "github.com/DataDog/datadog-agent/pkg/template/text"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// Limits of a template. A bootstrap with all features has some 30 kB.
const (
	maxSource = 1 << 20
	maxOutput = 16 << 20
	// maxSteps is the maximum number of executed actions, maxDepth the maximum depth of nested
	// template calls and nested lists.
	maxSteps = 1 << 18
	maxDepth = 100
	// maxMade is the maximum total size of all values that functions return, in bytes; maxText is
	// the maximum size of one text.
	maxMade = 64 << 20
	maxText = 4 << 20
)

// engineName is the name of every template in the engine's errors.
const engineName = "bootstrap"

// Render executes a template with its parameters. name is the file of the template; errors contain
// it, with the line.
func Render(name string, source []byte, params map[string]any) ([]byte, error) {
	return Functions(nil).Render(name, source, params)
}

// Functions are functions by their names, which templates can call beside those of the package; of
// two with the same name, they have precedence. They must be pure, and the size of a result must be
// proportional to that of the arguments.
type Functions map[string]any

// Check returns an error if a template cannot be parsed.
func (f Functions) Check(name string, source []byte) error {
	_, err := f.parse(name, source, &budget{})
	return err
}

func (f Functions) parse(name string, source []byte, b *budget) (*text.Template, error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("template %s has %d bytes; at most %d are allowed", name, len(source), maxSource)
	}
	all := b.functions()
	for name, function := range f {
		all[name] = b.charged(function)
	}
	parsed := text.New(engineName)
	all[includeName] = b.include(parsed)
	parsed, err := parsed.Funcs(all).Parse(string(source))
	if err != nil {
		return nil, shape(name, err)
	}
	return parsed, nil
}

// includeName is the function that returns the output of a defined template, as in Helm.
const (
	includeName   = "include"
	calledInclude = "error calling " + includeName + ": "
)

func (b *budget) include(defined *text.Template) any {
	return func(name string, params any) (string, error) {
		out := &limited{}
		if err := defined.ExecuteTemplate(out, name, params); err != nil {
			return "", err
		}
		return b.text(out.String())
	}
}

// charged returns a function that charges for the arguments before it is called.
func (b *budget) charged(function any) any {
	f := reflect.ValueOf(function)
	t := f.Type()
	in := make([]reflect.Type, t.NumIn())
	for i := range in {
		in[i] = t.In(i)
	}
	fault := reflect.TypeFor[error]()
	return reflect.MakeFunc(reflect.FuncOf(in, []reflect.Type{t.Out(0), fault}, t.IsVariadic()), func(args []reflect.Value) []reflect.Value {
		for _, arg := range args {
			if err := b.weighValue(arg, 0); err != nil {
				return []reflect.Value{reflect.Zero(t.Out(0)), reflect.ValueOf(&err).Elem()}
			}
		}
		out := f.Call
		if t.IsVariadic() {
			out = f.CallSlice
		}
		return append(out(args), reflect.Zero(fault))[:2]
	}).Interface()
}

// Render executes a template as [Render] does.
func (f Functions) Render(name string, source []byte, params map[string]any) ([]byte, error) {
	b := &budget{}
	parsed, err := f.parse(name, source, b)
	if err != nil {
		return nil, err
	}
	b.bound(parsed)
	out := &limited{}
	if err := parsed.Execute(out, params); err != nil {
		return nil, shape(name, err)
	}
	return out.Bytes(), nil
}

// limited is a buffer of limited size.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxOutput {
		return 0, fmt.Errorf("the output has more than %d bytes: look for a range that does not finish", maxOutput)
	}
	return l.Buffer.Write(p)
}

// place matches the prefix of the engine's errors: line, column and action.
const place = `^template: ` + engineName + `:(\d+):(?:\d+:)? ?(?:executing ".*?" at (<(?s:.*?)>): )?`

// shape converts an error of the engine to one that names the file, the line, the action, and the
// cure.
func shape(name string, err error) error {
	message := err.Error()
	if i := strings.LastIndex(message, calledInclude); i >= 0 {
		message = message[i+len(calledInclude):] // where the fault is, without where its caller is
	}
	found := regexp.MustCompile(place).FindStringSubmatch(message)
	if found == nil {
		return fmt.Errorf("template %s: %s%s", name, line(message), cure(message))
	}
	message = strings.ReplaceAll(message[len(found[0]):], engineName+":", "line ")
	for _, prefix := range []string{"error calling " + outName + ": ", "error calling " + stepName + ": ", "error calling " + enterName + ": "} {
		message = strings.TrimPrefix(message, prefix)
	}
	at := found[2]
	if strings.Contains(at, enterName) || strings.Contains(at, stepName) {
		at = "" // an internal action, not the user's
	}
	if at != "" {
		at = " at " + at
	}
	return fmt.Errorf("template %s line %s%s: %s%s", name, found[1], at, line(message), cure(message))
}

const (
	noField    = `can't evaluate field (\w+) in type`
	noFunction = `function "(\w+)" not defined`
)

// cure returns a suggestion for common errors, or "".
func cure(message string) string {
	if found := regexp.MustCompile(noFunction).FindStringSubmatch(message); found != nil {
		switch found[1] {
		case "env", "expandenv":
			return ": templates do not read the environment; set ISTIO_META_<KEY> and write (index .metadata.Raw \"<KEY>\")"
		default:
			return ": docs/compatibility.md lists the functions of Sprig that are not supported"
		}
	}
	if found := regexp.MustCompile(noField).FindStringSubmatch(message); found != nil {
		if field, ok := strings.CutPrefix(found[1], "Get"); ok && field != "" {
			return ": templates do not call methods; write the field ." + field
		}
		return ": it is not a field, and templates do not call methods; names are those of the Go structs"
	}
	if strings.Contains(message, "nil pointer evaluating") {
		return ": it is not set; test it with {{ if }} first"
	}
	return ""
}

// maxMessage is the maximum number of bytes of a message that an error quotes.
const maxMessage = 400

// line returns a message as a single line.
func line(message string) string {
	return strings.ReplaceAll(clip.Text(message, maxMessage), "\n", `\n`)
}
