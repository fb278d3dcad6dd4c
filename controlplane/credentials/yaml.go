// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/aliases"
)

// secret is a Secret in a file.
type secret struct {
	key  key
	data map[string][]byte
}

// lineNumber finds the line number in an error of the YAML library.
var lineNumber = regexp.MustCompile(`\bline \d+`)

// decode returns the Secrets in a file of YAML documents and ignores other kinds. It does not
// return the errors of the library, because they may quote a value.
func decode(file []byte, namespace string) ([]secret, error) {
	var out []secret
	for i, text := range documents(file) {
		if !bytes.Contains(text, []byte("Secret")) {
			continue // other readers report errors of these documents
		}
		if err := aliases.Check(text); err != nil {
			return nil, fmt.Errorf("document %d is refused: its aliases expand to too much, or it is not YAML%s", i+1, place(err))
		}
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal(text, &head); err != nil {
			return nil, fmt.Errorf("document %d is not the YAML of an object%s", i+1, place(err))
		}
		if head.Kind != "Secret" || head.APIVersion != "v1" {
			continue
		}
		var s struct {
			Metadata struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
			} `json:"metadata"`
			Data       map[string][]byte `json:"data"`
			StringData map[string]string `json:"stringData"`
		}
		if err := yaml.Unmarshal(text, &s); err != nil {
			return nil, fmt.Errorf("document %d is not the YAML of a Secret: data must be base64, stringData text%s", i+1, place(err))
		}
		if s.Metadata.Namespace == "" {
			s.Metadata.Namespace = namespace
		}
		if !isName(s.Metadata.Name) || !isName(s.Metadata.Namespace) {
			return nil, fmt.Errorf("document %d is a Secret without a valid name", i+1)
		}
		data := map[string][]byte{}
		maps.Copy(data, s.Data)
		for k, v := range s.StringData { // takes precedence, as in Kubernetes
			data[k] = []byte(v)
		}
		out = append(out, secret{key{s.Metadata.Namespace, s.Metadata.Name}, data})
	}
	return out, nil
}

func place(err error) string {
	if line := lineNumber.FindString(err.Error()); line != "" {
		return " (" + line + " of it)"
	}
	return ""
}

// documents splits a file into YAML documents.
func documents(file []byte) [][]byte {
	var out [][]byte
	start, at := 0, 0
	for line := range bytes.Lines(file) {
		if rest, ok := bytes.CutPrefix(line, []byte("---")); ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0) {
			out = append(out, file[start:at])
			start = at
		}
		at += len(line)
	}
	out = append(out, file[start:])
	kept := out[:0]
	for _, d := range out {
		if len(bytes.TrimSpace(bytes.TrimPrefix(d, []byte("---")))) > 0 {
			kept = append(kept, d)
		}
	}
	return kept
}
